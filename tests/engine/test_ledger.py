"""The ledger of rounds: time saved per request, corrected costs, the warning. Rounds and costs are made up."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from paceline.core.costs import CostTable, Grid
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.core.round import Outcome, RowResult, Source
from paceline.core.row import Row
from paceline.core.stats import EngineStats
from paceline.engine.ledger import ReadRound, RoundLedger
from paceline.engine.losing import LosingWatch

#: Plain 10 ms for one row and 12 for two; each further token row 1 ms; drafting 2 ms a token.
COSTS = CostTable(
    Grid(((1, 2), (0,)), (0.010, 0.012)),
    Grid(((1, 2), (1, 2, 12), (0,)), (0.010, 0.011, 0.021, 0.012, 0.012, 0.022)),
    Grid(((1, 2), (1, 4), (0,)), (0.002, 0.008, 0.002, 0.008)),
)


def make_row(index: int = 0) -> Row:
    return Row(Request("r", (1, 2), SamplingParams(), 50, (), 0, 4), index, [1, 2])


def result(proposed: int, accepted: int, source: Source = "draft") -> RowResult:
    kept = tuple(range(proposed))
    return RowResult(kept, (*kept[:accepted], 99), accepted, source=source if proposed else "plain")


def read(rows: Sequence[Row], results: Sequence[RowResult], seconds: float | None = None) -> ReadRound:
    outcomes = [Outcome("continue", len(each.emitted), each.accepted) for each in results]
    return ReadRound(rows, results, outcomes, [0] * len(rows), seconds)


def test_time_saved_is_plain_rounds_spared_less_what_window_and_draft_cost_more() -> None:
    row, stats = make_row(), EngineStats()
    ledger = RoundLedger(COSTS, stats)
    ledger.read(read([row], [result(4, 3)]))
    assert row.spec.time_saved_ms == pytest.approx(4 * 10 - (14 + 8))
    ledger.read(read([row], [result(4, 0)]))
    assert row.spec.time_saved_ms == pytest.approx(18 + 10 - 22)
    assert stats.time_saved_ms == row.spec.time_saved_ms


def test_a_plain_round_saves_nothing() -> None:
    row = make_row()
    RoundLedger(COSTS, EngineStats()).read(read([row], [result(0, 0)]))
    assert row.spec.time_saved_ms == pytest.approx(0.0)


def test_each_row_waits_for_the_whole_round() -> None:
    rows = [make_row(0), make_row(1)]
    RoundLedger(COSTS, EngineStats()).read(read(rows, [result(4, 4), result(0, 0)]))
    whole = COSTS.verify(2, 6, 0) + COSTS.draft(1, 4, 0)
    assert rows[0].spec.time_saved_ms == pytest.approx((5 * 0.012 - whole) * 1e3)
    assert rows[1].spec.time_saved_ms == pytest.approx((1 * 0.012 - whole) * 1e3)


def test_only_delivered_tokens_count_and_an_ending_eos_does() -> None:
    row = make_row()
    ledger = RoundLedger(COSTS, EngineStats())
    cut = Outcome("stop", 2, 2, halted=True)
    ledger.read(ReadRound([row], [result(4, 4)], [cut], [0]))
    assert row.spec.time_saved_ms == pytest.approx(2 * 10 - 22)
    ended, row = RowResult((1, 2), (1,), 1, saw_eos=True, source="draft"), make_row()
    ledger.read(ReadRound([row], [ended], [Outcome("stop", 1, 1)], [0]))
    assert row.spec.time_saved_ms == pytest.approx(2 * 10 - (12 + 4))


def test_a_span_costs_no_draft() -> None:
    row = make_row()
    RoundLedger(COSTS, EngineStats()).read(read([row], [result(4, 4, "span")]))
    assert row.spec.time_saved_ms == pytest.approx(5 * 10 - 14)


def test_measured_rounds_correct_the_costs() -> None:
    stats, row = EngineStats(), make_row()
    ledger = RoundLedger(COSTS, stats)
    for _ in range(15):
        assert ledger.read(read([row], [result(0, 0)], 0.015)) is None
    tables = [ledger.read(read([row], [result(0, 0)], 0.015)) for _ in range(200)]
    handed = [table for table in tables if table is not None]
    assert handed
    assert handed[-1] is ledger.costs
    assert ledger.costs.plain(1, 0) == pytest.approx(0.015, rel=0.06)
    assert stats.cost_factors["plain"] == pytest.approx(1.5, rel=0.06)


def test_rounds_whose_time_is_not_known_correct_nothing() -> None:
    ledger = RoundLedger(COSTS, EngineStats())
    assert [ledger.read(read([make_row()], [result(4, 1)])) for _ in range(100)] == [None] * 100
    assert ledger.costs is COSTS


def test_an_empty_round_is_none() -> None:
    assert RoundLedger(COSTS, EngineStats()).read(ReadRound([], [], [], [])) is None


def test_a_losing_drafter_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    stats, row = EngineStats(), make_row()
    ledger = RoundLedger(COSTS, stats, LosingWatch(window=10))
    with caplog.at_level(logging.WARNING, "paceline.engine"):
        for _ in range(40):
            ledger.read(read([row], [result(4, 0)]))
    assert len(caplog.records) == 1
    assert "acceptance too low" in caplog.text
    assert (stats.losing_stretches, stats.losing_reason) == (4, "acceptance too low")


def test_plain_and_span_rounds_are_no_losses() -> None:
    stats, row = EngineStats(), make_row()
    ledger = RoundLedger(COSTS, stats, LosingWatch(window=10))
    for _ in range(40):
        ledger.read(read([row], [result(4, 0, "span")]))
        ledger.read(read([row], [result(0, 0)]))
    assert stats.losing_stretches == 0
