"""Delivery: the worked examples of spec 9.6, every line of table 9.2, and the delivery bound (invariant 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.acceptance import Acceptance
from paceline.core.errors import Cancelled, RowFailed
from paceline.core.request import Request, SamplingParams
from paceline.core.round import Outcome, RowResult
from paceline.core.row import Finished, Row
from paceline.engine.delivery import deliver, settle
from paceline.engine.state import RowState

EOS = 99


class Host:
    """Publishes to one scripted consumer: takes ``most`` tokens, or raises after ``raises_at``."""

    rows: Sequence[Row] = ()

    def __init__(self, most: int = 1000, raises_at: int | None = None, abort_after: bool = False) -> None:
        self.most, self.raises_at, self.abort_after = most, raises_at, abort_after
        self.published: list[int] = []

    def publish(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        if self.raises_at is not None:
            error = ValueError("consumer broke")
            error.taken = self.raises_at  # type: ignore[attr-defined]
            raise error
        taken = min(self.most, len(tokens))
        self.published.extend(tokens[:taken])
        row.stopped = self.most == len(tokens)
        if self.abort_after:
            row.request.abort.abort("gone")
        return taken

    def join(self, row: Row) -> None: ...

    def filter_rows(self, keep: Sequence[bool]) -> None: ...

    def finish(self, row: Row, finished: Finished) -> None: ...

    def reject(self, row: Row, error: BaseException) -> None: ...

    def make_room(self) -> bool:
        return False


def row_of(remaining: int) -> Row:
    request = Request("r", (1, 2), SamplingParams(), remaining + 1, (EOS,), seed=0, draft_cap=4)
    return Row(request, index=0, tokens=[1, 2, 3], pending=3, step=1, length=2, generated=1)


def result_of(proposals: Sequence[int], draws: Sequence[int], remaining: int) -> RowResult:
    acceptance = Acceptance(proposals, remaining, {EOS})
    for token in draws:
        acceptance.accept(token)
    return RowResult.of(acceptance, "draft" if proposals else "plain")


def run(row: Row, result: RowResult, host: Host) -> tuple[Outcome, RowState]:
    state = RowState(row, prefix_length=2, chunk=4, keeps=True, committed=[])
    outcome = deliver(host, row, result)
    settle(row, state, result, outcome)
    return outcome, state


A, B, C, X, Y = 11, 12, 13, 21, 22
EXAMPLES = [
    # proposals, draws, remaining, consumer takes, kind, generated gain, retained, pending
    ([A, B, C], [A, B, X], 9, 1000, "continue", 3, [A, B], X),
    ([A, B, C], [A, B, C, Y], 9, 1000, "continue", 4, [A, B, C], Y),
    ([A, B, C], [A, EOS], 9, 1000, "stop", 2, [A], None),
    ([A, B, C], [A, B], 2, 1000, "length", 2, [A, B], None),
    ([A, B, C], [A, X], 2, 1000, "length", 2, [A], None),
    ([A, B, C], [A, B, C, Y], 9, 2, "stop", 2, [A, B], None),
    ([A, B, C], [A, B, X], 9, 3, "stop", 3, [A, B], None),
    ([], [X], 9, 1000, "continue", 1, [], X),
]


@pytest.mark.parametrize(("proposals", "draws", "remaining", "most", "kind", "gain", "retained", "pending"), EXAMPLES)
def test_worked_examples(
    proposals: list[int],
    draws: list[int],
    remaining: int,
    most: int,
    kind: str,
    gain: int,
    retained: list[int],
    pending: int | None,
) -> None:
    row = row_of(remaining)
    outcome, state = run(row, result_of(proposals, draws, remaining), Host(most))
    assert outcome.kind == kind
    assert row.generated == 1 + gain
    assert state.committed == [3, *retained]
    assert row.length == 2 + 1 + len(retained)
    if pending is not None:
        assert row.pending == pending
    row.spec.target_calls += 1  # the prefill
    row.spec.check()


def test_an_abort_seen_before_the_burst_delivers_nothing() -> None:
    row = row_of(9)
    row.request.abort.abort("client left")
    host = Host()
    outcome, state = run(row, result_of([A], [A, X], 9), host)
    assert (outcome.kind, outcome.taken, outcome.retained, host.published) == ("cancelled", 0, 0, [])
    assert isinstance(outcome.error, Cancelled)
    assert state.committed == []


def test_an_abort_seen_after_the_burst_counts_its_tokens_and_keeps_no_state() -> None:
    row = row_of(9)
    outcome, state = run(row, result_of([A], [A, X], 9), Host(abort_after=True))
    assert (outcome.kind, outcome.taken, outcome.retained) == ("cancelled", 2, 0)
    assert state.committed == []


def test_a_consumer_that_stops_wins_over_an_abort() -> None:
    row = row_of(9)
    outcome, _ = run(row, result_of([A], [A, X], 9), Host(most=1, abort_after=True))
    assert (outcome.kind, outcome.taken) == ("stop", 1)


def test_a_raising_consumer_fails_its_row_with_what_it_took() -> None:
    row = row_of(9)
    outcome, state = run(row, result_of([A, B], [A, B, X], 9), Host(raises_at=2))
    assert (outcome.kind, outcome.taken, outcome.retained) == ("failed", 2, 0)
    assert row.generated == 3
    assert state.committed == []


def test_a_bad_row_fails_without_a_token() -> None:
    row = row_of(9)
    outcome, _ = run(row, RowResult((A,), (), 0, bad=True, source="draft"), Host())
    assert (outcome.kind, outcome.taken) == ("failed", 0)
    assert isinstance(outcome.error, RowFailed)


def test_an_eos_that_meets_the_budget_is_counted_once() -> None:
    row = row_of(2)
    outcome, _ = run(row, result_of([A, B], [A, EOS], 2), Host())
    assert outcome.kind == "stop"
    assert row.generated == 3
    assert row.remaining == 0


tokens = st.lists(st.integers(10, 14), max_size=5)


@given(tokens, tokens, st.integers(1, 8), st.integers(0, 9))
def test_invariant_8_delivery_bound(proposals: list[int], draws: list[int], remaining: int, most: int) -> None:
    acceptance = Acceptance(proposals, remaining, {EOS})
    for token in [*draws, 50, 50, 50, 50, 50, 50]:
        if not acceptance.done:
            acceptance.accept(token)
    result = RowResult.of(acceptance, "draft" if proposals else "plain")
    row = row_of(remaining)
    outcome, state = run(row, result, Host(most))
    assert outcome.retained <= min(outcome.taken, result.accepted)
    assert state.committed is not None
    assert row.length == 2 + len(state.committed)
    if outcome.kind == "stop" and outcome.halted:
        assert outcome.retained == min(outcome.taken, result.accepted)
    if outcome.kind == "continue":
        assert row.pending not in state.committed[1 + outcome.retained :]
        assert row.tokens[-1] == row.pending


def test_invariant_8_catches_a_delivery_that_retains_what_was_not_taken() -> None:
    row = row_of(9)
    result = result_of([A, B, C], [A, B, C, Y], 9)
    state = RowState(row, prefix_length=2, chunk=4, keeps=True, committed=[])
    honest = deliver(Host(most=1), row, result)
    broken = Outcome(honest.kind, honest.taken, result.accepted, honest.halted)
    settle(row, state, result, broken)
    assert broken.retained > min(broken.taken, result.accepted)
    assert row.length != 2 + 1 + honest.retained
