"""What the planner tells the gate: evidence of the drafter's own proposals, and of probes that stay in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.ports import Evidence, GateRow
from paceline.core.request import Request, SamplingParams
from paceline.core.round import RowResult
from paceline.core.row import Row
from paceline.core.stats import EngineStats
from paceline.engine.drafting import Proposals
from paceline.engine.planning import Planner, Policy, RoundPlan
from paceline.engine.spans import RowSpans


class Recorder:
    """A gate that gives fixed depths and notes what it is asked and told."""

    probing = False

    def __init__(self, depth: int = 3) -> None:
        self.depth, self.told, self.asked = depth, [], []  # type: ignore[var-annotated]

    def join(self, index: int) -> None: ...
    def leave(self, index: int) -> None: ...

    def next(self, rows: Sequence[GateRow]) -> list[int]:
        self.asked.append(list(rows))
        return [min(row.cap, self.depth) for row in rows]

    def observe(self, entries: Sequence[Evidence]) -> None:
        self.told.extend(entries)

    def rates(self, index: int, match: int = 0) -> list[float]:
        return [0.9] * 8


class Fixed:
    """A free drafter that proposes the same for every row."""

    on_device = False

    def __init__(self, tokens: Sequence[int] = (7, 8, 9, 10)) -> None:
        self.tokens = list(tokens)

    def has(self, row: Row) -> bool:
        return row.drafting

    def draft(self, batch: Any) -> Proposals:
        return Proposals([self.tokens[:depth] for depth in batch.depths], [4] * len(batch.rows))


def make_row(index: int = 0, **options: Any) -> Row:
    request = Request(f"r{index}", (1, 2, 3), SamplingParams(), 20, (), seed=0, draft_cap=4, **options)
    return Row(request, index, [1, 2, 3, 6], pending=6, step=1, length=3, generated=1)


def make_planner(gate: Recorder, drafter: Fixed | None = None, spans: RowSpans | None = None) -> Planner:
    parts: Any = SimpleNamespace(tables=SimpleNamespace(device=SimpleNamespace(type="cpu")))
    policy: Any = Policy(gate, spans or RowSpans(), free=True)  # type: ignore[arg-type]
    return Planner(parts, drafter or Fixed(), policy, EngineStats())  # type: ignore[arg-type]


def results(rows: Sequence[Row], result: RowResult) -> Mapping[int, RowResult]:
    return {row.index: result for row in rows}


def test_proposals_of_the_drafter_are_evidence_and_a_burst_without_correction_tests_no_further() -> None:
    gate, row = Recorder(), make_row()
    planner = make_planner(gate)
    plan = planner.plan([row])
    assert plan.given == [[7, 8, 9]] and plan.depths == [0]
    planner.learn(plan, results([row], RowResult((7, 8, 9), (7, 5), 1, source="draft")))
    planner.learn(plan, results([row], RowResult((7, 8, 9), (7, 8), 2, saw_eos=True, source="draft")))
    assert gate.told == [Evidence(0, 3, 1, 4), Evidence(0, 2, 2, 4)]


@pytest.mark.parametrize("source", ["span", "plain"])
def test_spans_and_plain_rounds_are_no_evidence(source: Any) -> None:
    gate, row = Recorder(), make_row()
    planner = make_planner(gate)
    planner.learn(RoundPlan.plain([row]), results([row], RowResult((4, 5), (4, 5, 6), 2, source=source)))
    assert gate.told == []


def test_what_a_grammar_forced_is_no_evidence_but_its_draws_keep_the_probe_in_step() -> None:
    gate, row = Recorder(depth=0), make_row()
    planner = make_planner(gate)
    watched = planner.plan([row])  # what is left out of the round is watched: 7 8 9 10
    assert watched.given == [[]]
    watched.forced.add(row.index)
    planner.learn(watched, results([row], RowResult((7, 8), (7, 8), 2, source="draft")))
    assert gate.told == []
    planner.learn(RoundPlan.plain([row]), results([row], RowResult((), (9,), 0)))
    planner.learn(RoundPlan.plain([row]), results([row], RowResult((), (1,), 0)))
    assert gate.told == [Evidence(0, 4, 3, 4)]


def test_depths_decided_before_a_read_bound_what_is_looked_up_after_it() -> None:
    gate, rows = Recorder(), [make_row(0), make_row(1), make_row(2)]
    planner = make_planner(gate)
    decided = planner.plan(rows, unread=lambda row: True)
    assert decided.depths == [3, 3, 3] and decided.given == [[], [], []]
    rows[1].generated = 19  # one token is left
    plan = planner.plan([rows[1], rows[2]], decided={0: 3, 1: 3, 2: 2})
    assert plan.given == [[7], [7, 8]] and len(gate.asked) == 1, "the gate decides once per step"


def test_a_row_that_came_after_the_decision_proposes_nothing_yet() -> None:
    plan = make_planner(Recorder()).plan([make_row(5)], decided={0: 3})
    assert plan.given == [[]] and plan.widths == [0]


def test_what_a_grammar_may_force_is_planned_for_after_a_flush_too() -> None:
    planner = make_planner(Recorder())
    for decided in (None, {0: 0}):
        assert planner.plan([make_row(grammar=object())], decided=decided).room == [4]


def test_a_row_that_reuses_an_index_starts_without_the_probe_of_the_row_before() -> None:
    gate, row = Recorder(depth=0), make_row()
    planner = make_planner(gate)
    planner.plan([row])
    planner.leave(row)
    fresh = make_row()
    planner.join(fresh)
    planner.learn(RoundPlan.plain([fresh]), results([fresh], RowResult((), (1,), 0)))
    assert gate.told == []
