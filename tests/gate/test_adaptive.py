"""The gate as a whole: spec 11 and the parts of invariant 28 that are its own, each with a broken variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings

from paceline.core.ports import Evidence, GateRow
from paceline.gate.adaptive import AdaptiveGate, GateSettings

from .kit import DEPTH, Step, linear_costs, programs, row, run

CHEAP = linear_costs(0.05)
DEAR = linear_costs(0.9)
SHARED = linear_costs(0.2, draft=0.02)

Make = Callable[[], AdaptiveGate]


def gate(costs=SHARED, **more: object) -> AdaptiveGate:  # type: ignore[no-untyped-def]
    made = AdaptiveGate(costs, DEPTH, GateSettings(**more))  # type: ignore[arg-type]
    for index in range(4):
        made.join(index)
    return made


def teach(taught: AdaptiveGate, right: int, rounds: int = 200, index: int = 0, drafted: int = DEPTH) -> None:
    for _ in range(rounds):
        taught.observe([Evidence(index, drafted, right)])


# -- decisions --------------------------------------------------------------------------------------------------------


def test_depth_follows_evidence() -> None:
    learned = gate(CHEAP)
    teach(learned, right=DEPTH)
    assert learned.next([row()]) == [DEPTH]
    teach(learned, right=0)
    assert learned.next([row()]) == [0]


def test_depth_is_per_row() -> None:
    learned = gate(linear_costs(0.3))
    teach(learned, right=DEPTH, index=0)
    teach(learned, right=0, index=1)
    deep, none = learned.next([row(0), row(1)])
    assert deep > 0 and none == 0


def test_proposals_that_cost_more_than_they_bring_are_not_verified() -> None:
    learned = gate(DEAR)
    teach(learned, right=1)
    assert learned.next([row()]) == [1]
    teach(learned, right=0, rounds=20)
    assert learned.next([row()]) == [0]


@pytest.mark.parametrize(("margin", "depth"), [(1.0, 1), (1.5, 0)])
def test_a_gain_below_the_margin_is_left(margin: float, depth: int) -> None:
    careful = gate(linear_costs(0.4), margin=margin)
    assert careful.next([row(cap=1)]) == [depth]


def test_a_long_match_is_trusted_before_anything_was_observed() -> None:
    fresh = gate(linear_costs(0.25))
    assert fresh.next([row(match=20)]) == [DEPTH]
    assert fresh.next([row(match=1)]) == [0]


def test_no_proposal_is_of_use_behind_the_last_token() -> None:
    assert gate(CHEAP).next([row(remaining=1), row(1, remaining=3)]) == [0, 2]


def test_a_row_with_a_span_counts_as_one_position() -> None:
    learned = gate(CHEAP)
    teach(learned, right=DEPTH)
    assert learned.next([row(spanned=True)]) == [0]


def test_corrected_costs_change_the_choice() -> None:
    changing = gate(CHEAP)
    teach(changing, right=2)
    assert changing.next([row()])[0] > 0
    changing.correct(linear_costs(3.0))
    assert changing.next([row()]) == [0]


def test_the_expected_speedup_is_that_of_the_last_decision() -> None:
    learned = gate(CHEAP)
    teach(learned, right=DEPTH)
    learned.next([row()])
    assert learned.expected_speedup > 2
    teach(learned, right=0)
    learned.next([row()])
    assert learned.expected_speedup == 1.0


# -- probing ----------------------------------------------------------------------------------------------------------


def losing(**more: object) -> AdaptiveGate:
    made = gate(CHEAP, **more)
    teach(made, right=0)
    return made


def idle_until_probe(idle: AdaptiveGate, most: int = 600) -> int:
    for count in range(1, most):
        depths = idle.next([row()])
        if idle.probing:
            assert depths[0] > 0
            return count
        assert depths == [0]
    raise AssertionError("no probe")


def test_a_probe_follows_sixteen_decisions_without_and_the_interval_doubles() -> None:
    idle = losing()
    assert idle_until_probe(idle) == 16
    waits = []
    for _ in range(6):
        teach(idle, right=0)
        waits.append(idle_until_probe(idle))
    assert waits == [32, 64, 128, 256, 256, 256]


def test_probing_is_for_one_decision_and_then_waits_for_evidence() -> None:
    idle = losing()
    idle_until_probe(idle)
    for _ in range(10):
        assert idle.next([row()]) == [0] and not idle.probing
    idle.observe([Evidence(0, 2, 2)])
    assert idle.next([row()])[0] > 0


@pytest.mark.parametrize(("rounds", "wait"), [(20, 32), (33, 16)])
def test_the_interval_is_short_again_after_many_observed_rounds(rounds: int, wait: int) -> None:
    idle = losing()
    idle_until_probe(idle)
    for _ in range(rounds):
        idle.next([row()])
        teach(idle, right=DEPTH, rounds=1)
    teach(idle, right=0)
    assert idle_until_probe(idle) == wait


def test_what_a_probe_hopes_for_is_soon_refuted() -> None:
    idle = losing()
    idle_until_probe(idle)
    rounds = 0
    idle.observe([Evidence(0, 1, 0)])
    while idle.next([row(cap=1)])[0]:
        idle.observe([Evidence(0, 1, 0)])
        rounds += 1
    assert rounds < GateSettings().probe_settled // 2


def test_a_place_that_is_not_reached_any_more_is_tried_again() -> None:
    learning = gate(linear_costs(0.45))
    teach(learning, right=2, rounds=60, drafted=3)
    assert learning.next([row()]) == [2]
    for _ in range(150):
        learning.observe([Evidence(0, 2, 2)])
        if learning.next([row()])[0] > 2:
            return
    raise AssertionError("never deeper again")


def test_there_is_no_probe_while_evidence_arrives_anyway() -> None:
    watched = losing()
    for _ in range(100):
        assert watched.next([row()]) == [0] and not watched.probing
        watched.observe([Evidence(0, 4, 0)])


def test_there_is_no_probe_that_could_not_pay() -> None:
    hopeless = gate(linear_costs(1.2))
    assert hopeless.probe_depth([row()]) == 0
    assert all(hopeless.next([row()]) == [0] and not hopeless.probing for _ in range(60))


def test_a_row_that_was_given_nothing_is_tried_again_while_others_draft() -> None:
    shared = gate(linear_costs(0.3))
    teach(shared, right=0, index=1)
    for _ in range(200):
        shared.observe([Evidence(0, DEPTH, DEPTH)])
        if shared.next([row(0), row(1)])[1]:
            return
    raise AssertionError("never tried again")


# -- invariant 28 -----------------------------------------------------------------------------------------------------


def check_caps(make: Make, program: Sequence[Step]) -> None:
    for depths, step in zip(run(make(), program), program, strict=True):
        for depth, of in zip(depths, step.rows, strict=True):
            assert 0 <= depth <= (0 if of.spanned else of.cap)


def check_deterministic(make: Make, program: Sequence[Step]) -> None:
    assert run(make(), program) == run(make(), program)


def check_reset(make: Make, program: Sequence[Step]) -> None:
    used = make()
    run(used, program)
    used.reset()
    assert run(used, program) == run(fresh_without_rows(make), program)


def fresh_without_rows(make: Make) -> AdaptiveGate:
    made = make()
    made.reset()
    return made


def check_joins(make: Make, program: Sequence[Step]) -> None:
    """Rows 2 and 3 join and leave all the time; nobody else may notice."""
    alone, busy = make(), make()
    for number, step in enumerate(program):
        for index in (7, 8):
            (busy.leave if number % 2 else busy.join)(index)
        depths = alone.next(list(step.rows))
        assert busy.next(list(step.rows)) == depths
        entries = [Evidence(of.index, d, min(d, r)) for of, d, r in zip(step.rows, depths, step.right, strict=False)]
        for each in (alone, busy):
            each.observe(entries)
        assert all(alone.rates(of.index) == busy.rates(of.index) for of in step.rows if of.index in range(4))


Check = Callable[[Make, Sequence[Step]], None]
CHECKS: list[Check] = [check_caps, check_deterministic, check_reset, check_joins]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("costs", [CHEAP, SHARED, DEAR], ids=["cheap", "shared", "dear"])
def test_invariants(check: Check, costs: object) -> None:
    @settings(derandomize=True, max_examples=40, deadline=None)
    @given(programs())
    def holds(program: list[Step]) -> None:
        check(lambda: gate(costs), program)

    holds()


class IgnoresCaps(AdaptiveGate):
    def next(self, rows: Sequence[GateRow]) -> list[int]:
        return [depth + 1 for depth in super().next(rows)]


class Moody(AdaptiveGate):
    """Remembers across gates."""

    asked = 0

    def next(self, rows: Sequence[GateRow]) -> list[int]:
        Moody.asked += 1
        return [min(depth, Moody.asked % 3) for depth in super().next(rows)]


class KeepsGroup(AdaptiveGate):
    def reset(self) -> None:
        group = getattr(self, "_group", None)
        super().reset()
        self._group = group or self._group


class JoinDisturbs(AdaptiveGate):
    def join(self, index: int) -> None:
        super().join(index)
        for counters in self._rows.values():
            counters.add({0: (1.0, 0.0)})


LONG = [Step((row(0), row(1, cap=3)), (right, 0, 0, 0)) for right in (6, 6, 6, 0, 6, 6, 6, 1, 6, 6)]


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_caps, IgnoresCaps),
        (check_deterministic, Moody),
        (check_reset, KeepsGroup),
        (check_joins, JoinDisturbs),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_checks_see_broken_gates(check: Check, broken: type[AdaptiveGate]) -> None:
    def make() -> AdaptiveGate:
        made = broken(linear_costs(0.02), DEPTH)
        for index in range(4):
            made.join(index)
        return made

    with pytest.raises(AssertionError):
        check(make, LONG)
    check(lambda: gate(linear_costs(0.02)), LONG)


def test_rows_that_left_and_empty_rounds_do_no_harm() -> None:
    used = gate()
    used.leave(0)
    used.leave(0)
    used.observe([Evidence(0, 3, 1)])
    used.observe([])
    assert used.next([row(1)])[0] > 0


def test_no_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def refuse(*_: object) -> float:
        raise AssertionError("the gate read a clock")

    for name in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, refuse)
    run(gate(), LONG)
