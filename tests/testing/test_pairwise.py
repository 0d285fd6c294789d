"""The covering design: every pair of values, few rows, always the same ones."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.testing.grid import FACTORS
from paceline.testing.pairwise import full_grid, pairwise

sizes = st.lists(st.integers(1, 6), min_size=2, max_size=6)


def uncovered(factors: dict[str, range], rows: list[dict[str, int]]) -> int:
    """Number of pairs of values that no row holds."""
    return sum(
        not any(row[a] == x and row[b] == y for row in rows)
        for a, b in combinations(factors, 2)
        for x in factors[a]
        for y in factors[b]
    )


@given(sizes)
def test_every_pair_of_values_occurs(counts: list[int]) -> None:
    factors = {f"f{n}": range(count) for n, count in enumerate(counts)}
    assert uncovered(factors, pairwise(factors)) == 0


@given(sizes)
def test_the_design_is_no_larger_than_the_grid_and_near_the_bound(counts: list[int]) -> None:
    factors = {f"f{n}": range(count) for n, count in enumerate(counts)}
    rows = pairwise(factors)
    largest, second = sorted(counts)[-1], sorted(counts)[-2]
    assert largest * second <= len(rows) <= min(len(full_grid(factors)), 2 * largest * second)


def test_a_dropped_row_is_noticed_by_the_coverage_count() -> None:
    factors = {"a": range(3), "b": range(3), "c": range(2)}
    rows = pairwise(factors)
    assert uncovered(factors, rows[1:]) > 0


def test_the_order_of_factors_is_kept_and_the_result_repeats() -> None:
    factors = {"z": "abc", "a": (1, 2), "m": (True, False)}
    rows = pairwise(factors)
    assert all(list(row) == ["z", "a", "m"] for row in rows)
    assert rows == pairwise(factors)


def test_one_factor_or_an_empty_one_is_refused() -> None:
    with pytest.raises(ValueError, match="two factors"):
        pairwise({"a": [1]})
    with pytest.raises(ValueError, match="at least one value"):
        pairwise({"a": [1], "b": []})


def test_the_grid_of_the_equality_suite_has_the_promised_factors() -> None:
    assert list(FACTORS["depth"]) == list(range(9))
    assert set(FACTORS["batch"]) == {1, 3, 8}
    assert set(FACTORS["chunk"]) == {1, 7, 64, 512}
    test_drafters = {"scripted", "oracle", "adversarial", "ragged", "empty", "device"}
    assert set(FACTORS["drafter"]) == {"none", "ngram", "suffix", "draft_model", *test_drafters}
    assert len(pairwise(FACTORS)) <= 120
