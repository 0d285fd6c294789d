"""The arithmetic of interleaved pairs: order, ratios, bounds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.pairs import interleaved, prompt_speedup, quantile, speedup

_SECONDS = st.floats(0.001, 10.0)
_PAIRS = st.lists(st.lists(st.tuples(_SECONDS, _SECONDS), min_size=1, max_size=5), min_size=1, max_size=5)


@given(st.integers(0, 7), st.integers(0, 40))
def test_every_repeat_runs_every_arm_once(count: int, repeat: int) -> None:
    assert sorted(interleaved(range(count), repeat)) == list(range(count))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_arm_comes_first_equally_often(count: int) -> None:
    firsts = Counter(interleaved(range(count), repeat)[0] for repeat in range(2 * count))
    assert set(firsts.values()) == {2}


def test_neighbours_change_sides() -> None:
    assert interleaved("ab", 0) == ["a", "b"]
    assert interleaved("ab", 1) == ["b", "a"]


def test_a_ratio_above_one_means_faster() -> None:
    assert prompt_speedup([(2.0, 1.0), (9.0, 3.0), (4.0, 1.0)]) == 3.0


def test_no_prompts_have_no_speedup() -> None:
    assert speedup([]) is None


def test_a_machine_that_drifts_does_not_widen_the_bounds() -> None:
    drift = [1.0, 1.4, 7.0, 2.0, 0.5]
    bound = speedup([[(2.0 * slow, 1.0 * slow) for slow in drift] for _ in range(4)])
    assert bound is not None
    assert (bound.value, bound.low, bound.high) == pytest.approx((2.0, 2.0, 2.0))
    # the same times with broken pairs: what the test above would look like if runs were not kept together
    broken = speedup([[(2.0 * a, b) for a, b in zip(drift, drift[1:] + drift[:1], strict=True)] for _ in range(4)])
    assert broken is not None
    assert broken.high / broken.low > 1.5


def test_an_outlier_among_the_repeats_does_not_move_the_value() -> None:
    bound = speedup([[(2.0, 1.0), (2.0, 1.0), (2.0, 40.0)], [(2.0, 1.0)] * 3])
    assert bound is not None
    assert bound.value == pytest.approx(2.0)
    assert bound.low < 2.0


def test_prompts_count_alike_however_long_they_are() -> None:
    bound = speedup([[(100.0, 25.0)], [(0.01, 0.01)]])
    assert bound is not None
    assert bound.value == pytest.approx(2.0)
    assert bound.prompts == 2
    assert (bound.low, bound.high) == pytest.approx((1.0, 4.0))


@given(_PAIRS)
def test_changing_sides_inverts_the_speedup(pairs: list[list[tuple[float, float]]]) -> None:
    there = speedup(pairs, draws=20)
    back = speedup([[(other, base) for base, other in entry] for entry in pairs], draws=20)
    assert there is not None
    assert back is not None
    assert there.value * back.value == pytest.approx(1.0)


@given(_PAIRS, st.integers(0, 3))
def test_bounds_are_ordered_and_reproducible(pairs: list[list[tuple[float, float]]], seed: int) -> None:
    bound = speedup(pairs, draws=50, seed=seed)
    assert bound is not None
    assert bound.low <= bound.high
    assert bound == speedup(pairs, draws=50, seed=seed)


def test_bounds_cover_the_truth_about_as_often_as_they_say() -> None:
    generator = random.Random(3)
    covered = 0
    for trial in range(60):
        pairs = []
        for _ in range(16):
            ratio = 1.5 * generator.lognormvariate(0.0, 0.2)
            pairs.append([(ratio * generator.lognormvariate(0.0, 0.05), 1.0) for _ in range(3)])
        bound = speedup(pairs, draws=200, seed=trial)
        assert bound is not None
        covered += bound.low <= 1.5 <= bound.high
    assert 50 <= covered <= 60


def test_quantiles_interpolate() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([5.0], 0.025) == 5.0
    assert quantile([1.0, 3.0], 1.0) == 3.0
