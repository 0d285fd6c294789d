"""Delivery of bursts: what a consumer took decides what its row keeps (spec 9), and never what another row keeps."""

from __future__ import annotations

from ..core.errors import Cancelled, RowFailed
from ..core.ports import Host
from ..core.round import Burst, Outcome, RowResult
from ..core.row import Row
from .state import RowState
from .statistics import count_round

_BAD = "no token can be drawn: the model's logits are not finite, or the request's own bans leave no id"


def deliver(host: Host, row: Row, result: RowResult) -> Outcome:
    """Publish one row's burst and say what became of it: the first case of table 9.2 that applies."""
    if _aborted(row):
        return _cancelled(row, 0)
    if result.bad:
        return Outcome("failed", 0, 0, error=result.error or RowFailed(_BAD))
    tokens = result.emitted
    taken = 0
    if tokens:
        row.burst = Burst.of(result)
        try:
            taken = host.publish(row, tokens, result.metadata)
        except Exception as error:
            return Outcome("failed", _taken_before(error, len(tokens)), 0, error=error)
    kept = min(taken, result.accepted)
    if taken < len(tokens) or row.stopped:
        return Outcome("stop", taken, kept, halted=True)
    if _aborted(row):
        return _cancelled(row, taken)
    if result.saw_eos or result.grammar_done:
        return Outcome("stop", taken, kept)
    if taken >= row.remaining:
        return Outcome("length", taken, kept)
    return Outcome("continue", taken, result.accepted)


def settle(row: Row, state: RowState, result: RowResult, outcome: Outcome) -> None:
    """Bring the host mirror up to date with a delivered burst (spec 9.4, steps 2 to 5)."""
    row.generated += outcome.taken
    row.tokens.extend(result.emitted[: outcome.taken])
    if outcome.keeps_state:
        kept = result.proposals[: outcome.retained]
        if state.committed is not None:
            state.committed.append(row.pending)
            state.committed.extend(kept)
        row.length += 1 + outcome.retained
    row.step += result.used_draws
    if outcome.kind == "stop" and not outcome.halted and result.saw_eos and row.remaining > 0:
        row.generated += 1
    if outcome.kind == "continue":
        row.pending = result.emitted[-1]
    count_round(row.spec, result, row.generated)


def _aborted(row: Row) -> bool:
    return row.request.abort.aborted


def _cancelled(row: Row, taken: int) -> Outcome:
    return Outcome("cancelled", taken, 0, error=Cancelled(row.request.abort.reason or ""))


def _taken_before(error: Exception, burst: int) -> int:
    """How many tokens a raising consumer took, as its exception says (0 if it does not)."""
    taken = getattr(error, "taken", 0)
    return min(max(taken, 0), burst) if isinstance(taken, int) else 0
