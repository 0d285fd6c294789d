"""Invariants 8 and 13: what a consumer takes decides what its own row keeps, and touches nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import DECODER, DRAFTERS, greedy, job_lists, make_drafter, serve, setups

import paceline.engine.delivery as delivery_module
import paceline.engine.settlement as settlement_module
from paceline.core.acceptance import Acceptance
from paceline.core.request import Request, SamplingParams
from paceline.core.round import Outcome, RowResult
from paceline.core.row import Row
from paceline.engine.delivery import deliver
from paceline.testing.collect import Behaviour, Collector, ConsumerBroke
from paceline.testing.harness import Job, Setup


@dataclass
class Host:
    """Publishes to one collector; the rest of the host is not used by delivery."""

    collector: Collector
    rows: Sequence[Row] = field(default_factory=list)

    def publish(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        return self.collector.take(row, tokens, metadata)


@st.composite
def bursts(draw: st.DrawFn) -> tuple[Row, RowResult]:
    """A row with budget and what one round found for it, made by the acceptance itself."""
    remaining = draw(st.integers(1, 8))
    proposals = draw(st.lists(st.integers(0, 3), max_size=6))
    acceptance = Acceptance(proposals, remaining, frozenset({0}))
    while not acceptance.done:
        place = acceptance.position
        right = place < len(proposals) and draw(st.integers(0, 3)) > 0
        acceptance.accept(proposals[place] if right else draw(st.integers(0, 3)))
    request = Request("r", (1, 2), SamplingParams(max_tokens=20), 20, (0,), seed=0, draft_cap=6)
    row = Row(request, 0, [1, 2, 9], pending=9, step=1, length=2, generated=20 - remaining)
    result = RowResult.of(acceptance, "draft" if proposals else "plain")
    return row, replace(result, bad=draw(st.integers(0, 9)) == 0)


@st.composite
def behaviours(draw: st.DrawFn) -> Behaviour:
    place = draw(st.integers(1, 6))
    return draw(st.sampled_from([Behaviour(), Behaviour(place), Behaviour(None, place), Behaviour(None, None, place)]))


def check_bound(result: RowResult, outcome: Outcome, got: Collector) -> None:
    """Invariant 8 for one delivered burst."""
    assert outcome.retained <= min(outcome.taken, result.accepted)
    assert outcome.taken == len(got.tokens) or isinstance(outcome.error, ConsumerBroke)
    if outcome.kind in ("failed", "cancelled"):
        assert outcome.retained == 0
    stop = got.behaviour.stop_after
    if stop is not None and stop <= len(result.emitted) and outcome.error is None:
        assert outcome.kind == "stop" and outcome.halted
        assert (outcome.taken, outcome.retained) == (stop, min(stop, result.accepted))
    if outcome.kind == "continue":
        assert outcome.retained == result.accepted and outcome.taken == len(result.emitted)


@given(bursts(), behaviours(), st.booleans())
def test_8_retained_is_bounded_by_what_was_taken(
    burst: tuple[Row, RowResult], behaviour: Behaviour, aborted: bool
) -> None:
    row, result = burst
    if aborted:
        row.request.abort.abort("before the burst")
    got = Collector(behaviour)
    outcome = deliver(Host(got), row, result)  # type: ignore[arg-type]
    check_bound(result, outcome, got)
    if aborted:
        assert (outcome.kind, outcome.taken, got.tokens) == ("cancelled", 0, [])
    elif result.bad:
        assert (outcome.kind, got.tokens) == ("failed", [])


EXAMPLES = [
    # proposals, draws, remaining, stop_after -> kind, taken, retained (spec 9.6; 0 is EOS)
    ([1, 2, 3], [1, 2, 7], 9, None, "continue", 3, 2),
    ([1, 2, 3], [1, 2, 3, 8], 9, None, "continue", 4, 3),
    ([1, 2, 3], [1, 0], 9, None, "stop", 1, 1),
    ([1, 2, 3], [1, 2], 2, None, "length", 2, 2),
    ([1, 2, 3], [1, 7], 2, None, "length", 2, 1),
    ([1, 2, 3], [1, 2, 3, 8], 9, 2, "stop", 2, 2),
    ([1, 2, 3], [1, 2, 7], 9, 3, "stop", 3, 2),
    ([], [7], 9, None, "continue", 1, 0),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_8_the_worked_examples(example: tuple[Any, ...]) -> None:
    proposals, draws, remaining, stop_after, kind, taken, retained = example
    acceptance = Acceptance(proposals, remaining, frozenset({0}))
    for draw in draws:
        acceptance.accept(draw)
    assert acceptance.done
    request = Request("r", (1, 2), SamplingParams(max_tokens=9), 9, (0,), seed=0, draft_cap=3)
    row = Row(request, 0, [1, 2, 9], pending=9, length=2, generated=9 - remaining)
    outcome = deliver(Host(Collector(Behaviour(stop_after))), row, RowResult.of(acceptance, "draft"))  # type: ignore[arg-type]
    assert (outcome.kind, outcome.taken, outcome.retained) == (kind, taken, retained)


def test_8_catches_delivery_that_keeps_what_was_not_taken() -> None:
    def careless(result: RowResult, outcome: Outcome) -> Outcome:
        return replace(outcome, retained=result.accepted)

    request = Request("r", (1, 2), SamplingParams(max_tokens=9), 9, (0,), seed=0, draft_cap=3)
    row = Row(request, 0, [1, 2, 9], pending=9, length=2, generated=1)
    result = RowResult((1, 2, 3), (1, 2, 3, 8), 3, source="draft")
    got = Collector(Behaviour(stop_after=2))
    outcome = deliver(Host(got), row, result)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        check_bound(result, careless(result, outcome), got)


@pytest.mark.parametrize("stop_after", range(1, 13))
def test_8_how_draws_fall_into_bursts_changes_no_result(stop_after: int) -> None:
    job = Job("stops", (5, 6, 7), greedy(16), Behaviour(stop_after=stop_after))
    run = DECODER.run(job.prompt, job.params)
    shapes = set()
    for depth in (0, 1, 2, 3, 5, 8):
        for device_round in (True, False):
            got = serve(Setup(depth=depth, device_round=device_round), (job,), make_drafter("oracle", DECODER))["stops"]
            assert (tuple(got.tokens), got.reason, got.generated) == (run.tokens[:stop_after], "stop", stop_after)
            assert got.problems == []
            shapes.add(tuple(got.bursts))
    assert len(shapes) > 1 or stop_after <= 2, "the bursts did differ"


def test_8_catches_delivery_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    original = settlement_module.deliver

    def token_by_token(host, row, result):  # type: ignore[no-untyped-def]
        """Delivers the burst token by token and looks at the stop only at the end."""
        for token in result.emitted[:-1]:
            host.publish(row, [token], None)
        rest = replace(result, emitted=result.emitted[-1:], accepted=min(result.accepted, 1))
        return original(host, row, rest)

    monkeypatch.setattr(settlement_module, "deliver", token_by_token)
    job = Job("stops", (5, 6, 7), greedy(16), Behaviour(stop_after=3))
    got = serve(Setup(depth=6), (job,), make_drafter("oracle", DECODER))["stops"]
    assert got.problems


@given(setups(), job_lists(most=6), st.sampled_from(DRAFTERS))
@settings(max_examples=40)
def test_13_misbehaving_consumers_leave_their_siblings_alone(setup: Setup, jobs: tuple[Job, ...], drafter: str) -> None:
    served = serve(setup, jobs, make_drafter(drafter, DECODER))
    calm = serve(setup, tuple(replace(job, behaviour=Behaviour()) for job in jobs), make_drafter(drafter, DECODER))
    for job in jobs:
        if job.behaviour == Behaviour():
            assert served[job.name].tokens == calm[job.name].tokens
            assert served[job.name].reason == calm[job.name].reason
        assert served[job.name].problems == []


def one_raises() -> tuple[Job, ...]:
    """Four requests, the second of which has a consumer that raises in its fourth token."""
    ways = [Behaviour(), Behaviour(raise_after=4), Behaviour(), Behaviour()]
    return tuple(Job(f"job-{n}", (n + 1, n + 2), greedy(12), way) for n, way in enumerate(ways))


def test_13_a_raising_consumer_ends_with_its_own_error_and_no_other() -> None:
    served = serve(Setup(rows=4), one_raises(), make_drafter("oracle", DECODER))
    finished = served["job-1"].finished
    assert finished is not None and isinstance(finished.error, ConsumerBroke)
    assert [served[f"job-{n}"].reason for n in range(4)] == ["length", "error", "length", "length"]


def test_13_catches_delivery_without_containment(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver_unguarded(host, row, result):  # type: ignore[no-untyped-def]
        taken = host.publish(row, result.emitted, None)
        kind = "continue" if taken < row.remaining else "length"
        return Outcome(kind, taken, result.accepted)

    monkeypatch.setattr(settlement_module, "deliver", deliver_unguarded)
    served = serve(Setup(rows=4), one_raises(), make_drafter("none", DECODER))
    assert any(served[f"job-{n}"].reason == "error" for n in (0, 2, 3))


def test_an_exceptions_taken_count_is_believed_within_the_burst() -> None:
    class Lying(Exception):
        taken = 99

    class Raises:
        def publish(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
            raise Lying

    request = Request("r", (1, 2), SamplingParams(max_tokens=9), 9, (0,), seed=0, draft_cap=3)
    row = Row(request, 0, [1, 2, 9], pending=9, length=2, generated=1)
    outcome = delivery_module.deliver(Raises(), row, RowResult((1, 2), (1, 2, 3), 2))  # type: ignore[arg-type]
    assert (outcome.kind, outcome.taken, outcome.retained) == ("failed", 3, 0)
