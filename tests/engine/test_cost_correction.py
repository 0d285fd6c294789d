"""Corrections from round times: they follow slowly, stay within bounds, and shrug off what a stall adds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.costs import CostTable, Grid
from paceline.engine.cost_correction import CostCorrection, Pace, PriceList, RoundShape

TABLE = CostTable(
    Grid(((1, 8), (0, 1000)), (0.010, 0.012, 0.014, 0.030)),
    Grid(
        ((1, 8), (1, 9, 72), (0, 1000)), (0.010, 0.012, 0.012, 0.014, 0.03, 0.04, 0.014, 0.03, 0.015, 0.03, 0.05, 0.07)
    ),
    Grid(((1, 8), (1, 8), (0,)), (0.002, 0.016, 0.003, 0.024)),
)
PLAIN = RoundShape(1, 1, 100)
WINDOW = RoundShape(1, 9, 100)
DRAFTED = RoundShape(4, 12, 100, draft_rows=4, depth=2)


def fed(shape: RoundShape, factor: float, rounds: int, correction: CostCorrection | None = None) -> CostCorrection:
    known = correction or CostCorrection(TABLE)
    for _ in range(rounds):
        known.observe_round(shape, factor * PriceList(TABLE).of(shape).whole)
    return known


def test_a_steady_departure_is_followed() -> None:
    factors = fed(WINDOW, 1.5, 400).factors
    assert factors["verify"] == pytest.approx(1.5, rel=0.02)
    assert fed(PLAIN, 0.8, 400).factors["plain"] == pytest.approx(0.8, rel=0.02)


def test_it_is_followed_slowly() -> None:
    assert fed(WINDOW, 1.5, 1).factors["verify"] < 1.02
    assert fed(WINDOW, 1.5, 10).factors["verify"] < 1.2


def test_bounds_hold() -> None:
    assert fed(WINDOW, 50.0, 3000).factors["verify"] == pytest.approx(2.0)
    assert fed(WINDOW, 0.001, 3000).factors["verify"] == pytest.approx(0.5)


def stall(correction: CostCorrection) -> None:
    correction.observe_round(WINDOW, 100 * PriceList(TABLE).of(WINDOW).whole)


def test_a_stall_moves_next_to_nothing() -> None:
    correction = fed(WINDOW, 1.0, 50)
    stall(correction)
    assert correction.factors["verify"] < 1.02
    assert correction.corrected() is None


def test_one_round_in_ten_that_is_disturbed_is_no_slow_machine() -> None:
    correction = CostCorrection(TABLE)
    for _ in range(60):
        fed(WINDOW, 1.0, 9, correction)
        stall(correction)
    assert correction.factors["verify"] < 1.12


def test_an_unbounded_step_would_be_moved_by_one_stall() -> None:
    careless = CostCorrection(TABLE, Pace(step=100.0))
    stall(careless)
    assert careless.factors["verify"] > 1.2


def test_a_machine_that_slows_down_does_so_for_kinds_that_are_not_seen() -> None:
    """Else a slower machine would make plain steps look cheap, and speculation would be switched off for it."""
    factors = fed(WINDOW, 1.6, 400).factors
    assert factors["plain"] == pytest.approx(factors["verify"], rel=0.02)
    assert factors["draft"] == pytest.approx(factors["verify"], rel=0.02)


def test_kinds_that_are_seen_go_their_own_way() -> None:
    correction = CostCorrection(TABLE)
    for _ in range(400):
        fed(PLAIN, 1.0, 1, correction)
        fed(WINDOW, 1.5, 1, correction)
    assert correction.factors["plain"] == pytest.approx(1.0, abs=0.1)
    assert correction.factors["verify"] == pytest.approx(1.5, rel=0.1)


def test_a_drafters_times_do_not_move_the_target() -> None:
    correction = CostCorrection(TABLE)
    for _ in range(400):
        correction.observe("draft", 2, 4, 0, 1.7 * TABLE.draft(2, 4, 0))
    assert correction.factors["draft"] == pytest.approx(1.7, rel=0.02)
    assert (correction.factors["plain"], correction.factors["verify"]) == (1.0, 1.0)


def test_a_whole_round_is_shared_out_between_its_parts() -> None:
    factors = fed(DRAFTED, 1.3, 600).factors
    assert factors["verify"] == pytest.approx(1.3, rel=0.02)
    assert factors["draft"] == pytest.approx(1.3, rel=0.02)


def test_a_table_is_handed_out_when_it_has_moved_and_then_not_again() -> None:
    correction = fed(WINDOW, 1.5, 100)
    table = correction.corrected()
    assert table is not None
    assert table.verify(1, 9, 100) == pytest.approx(correction.factors["verify"] * TABLE.verify(1, 9, 100))
    assert correction.corrected() is None
    assert fed(WINDOW, 1.0, 8, CostCorrection(TABLE)).corrected() is None
    assert fed(WINDOW, 1.01, 500).corrected() is None


def test_what_is_no_time_is_ignored() -> None:
    correction = CostCorrection(TABLE)
    correction.observe_round(WINDOW, 0.0)
    correction.observe("draft", 0, 4, 0, 1.0)
    assert set(correction.factors.values()) == {1.0}


@given(
    st.lists(st.tuples(st.sampled_from([PLAIN, WINDOW, DRAFTED]), st.floats(1e-6, 1e3, allow_nan=False)), max_size=60)
)
def test_whatever_is_observed_factors_stay_within_bounds(rounds: list[tuple[RoundShape, float]]) -> None:
    assert bounded(rounds, lambda: CostCorrection(TABLE)) <= 2.0001


def test_the_bound_is_needed() -> None:
    wild = [(WINDOW, 1e3)] * 300
    assert bounded(wild, lambda: CostCorrection(TABLE, Pace(bounds=(1e-9, 1e9)))) > 2.0001


def bounded(rounds: list[tuple[RoundShape, float]], make: Callable[[], CostCorrection]) -> float:
    """How far any factor went, up or down."""
    correction = make()
    for shape, seconds in rounds:
        correction.observe_round(shape, seconds)
    return max(max(factor, 1 / factor) for factor in correction.factors.values())
