"""A speculative group: rows decoded together, one round per advance (spec 6). It owns row states, not policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.errors import Cancelled, RowFailed
from ..core.ports import DRAFTER, CachedPrefix, Host
from ..core.round import Outcome
from ..core.row import Finished, FinishReason, Row
from ..core.stats import EngineStats
from ..core.transaction import release_all
from .device_round import RoundMachine
from .drafting import GuardedDrafter
from .draws import RowSampler
from .grammars import RowGrammars
from .launch import EagerLauncher, Launcher
from .ledger import RoundLedger
from .phases import NULL_CLOCK, NullClock
from .pipeline import Pipeline
from .planning import Planner, Policy
from .preemption import PreemptedRow, RamTier
from .preparation import Preparation
from .round import RoundRunner
from .settlement import Settlement
from .state import EngineParts, RowState

_LOG = logging.getLogger("paceline.engine")


@dataclass(frozen=True)
class GroupTools:
    """What groups are built with, the same for all of an engine. ``make_launcher``: how device rounds are run;
    ``make_ledger``: who accounts for what they cost, where that is known."""

    parts: EngineParts
    sampler: RowSampler
    stats: EngineStats
    ram: RamTier
    clock: NullClock = NULL_CLOCK
    make_ledger: Callable[[], RoundLedger] | None = None
    make_launcher: Callable[[RoundMachine], Launcher] = EagerLauncher


class SpeculativeGroup:
    """Decodes its rows until it is closed. ``policy`` says what they propose."""

    def __init__(self, tools: GroupTools, host: Host, drafter: GuardedDrafter, policy: Policy) -> None:
        self.parts = tools.parts
        self.host = host
        self.drafter = drafter
        self.sampler = tools.sampler
        self.ram = tools.ram
        self.stats = tools.stats
        self.spans = policy.spans
        self.clock = tools.clock
        self.ledger = tools.make_ledger() if tools.make_ledger is not None else None
        self.key = ""
        self.grammars = RowGrammars()
        self.planner = Planner(self.parts, drafter, policy, self.stats)
        runner = RoundRunner(self.parts, drafter, self.sampler, self.grammars, tools.clock)
        launcher = tools.make_launcher(RoundMachine(self.parts, self.sampler, drafter))
        self._pipeline = Pipeline(self, runner, launcher, Settlement(self).settle)
        self._states: dict[int, RowState] = {}
        self._deferred: list[int] = []

    # -- membership --------------------------------------------------------------------------------------------------

    def prepare(self) -> Preparation:
        """An empty preparation: rows are admitted to it and join the group from it (spec 4.1)."""
        return Preparation(self)

    def register(self, state: RowState) -> None:
        """Make a joined row a member; the last, unfailing part of a join."""
        self._states[state.row.index] = state
        self.planner.join(state.row)
        self.host.join(state.row)

    def is_member(self, row: Row) -> bool:
        """Whether the row joined and has not left."""
        state = self._states.get(row.index)
        return state is not None and state.row is row

    def state_of(self, row: Row) -> RowState:
        return self._states[row.index]

    def first_blocks(self, row: Row) -> int:
        """Positions a row needs blocks for before it can decode: its prompt and one round of its greatest depth."""
        return min(row.prompt_tokens + 1 + row.request.draft_cap, row.position_limit)

    def filter_rows(self, keep: Sequence[bool], bad: Collection[int] = ()) -> None:
        """Release the rows not kept and drop them from the host's order; all releases are attempted (spec 6.8).

        ``bad``: indices of rows whose state is not finite; their blocks are wiped before others get them.
        """
        gone = [row for row, kept in zip(self.host.rows, keep, strict=True) if not kept]
        if not gone:
            return
        try:
            release_all([partial(self.release_row, row, row.index in bad) for row in gone])
        finally:
            self.host.filter_rows(keep)

    def release_row(self, row: Row, clear: bool = False) -> None:
        """Give back everything a row holds: drafter row, blocks, index. Exactly once per row."""
        tables = self.parts.tables
        index = row.index
        self._states.pop(index, None)
        release_all(
            [
                lambda: self.planner.leave(row),
                lambda: self.spans.close_row(row),
                lambda: self.drafter.close_row(row),
                lambda: self.sampler.close_row(row),
                lambda: self.grammars.close_row(row),
                lambda: tables.stop(index),
                lambda: tables.release(index, clear),
                lambda: self._release_index(row),
            ]
        )

    def _release_index(self, row: Row) -> None:
        """Give the index back, but not before every round that names it has been read (spec 3.1)."""
        if self._pipeline.names(row):
            self._deferred.append(row.index)
        else:
            self.parts.tables.release_index(row.index)

    def release_deferred(self) -> None:
        """The round in flight has been read or dropped: indices that waited for it are free."""
        while self._deferred:
            self.parts.tables.release_index(self._deferred.pop())

    def take_out(self, state: RowState) -> PreemptedRow:
        """Release a row that is to go on later; its state moves to the RAM tier if that has room."""
        attachment = self.drafter.capture(state.row)
        self.spans.suspend(state.row)
        preempted = PreemptedRow(state.row, state, self.ram.take(self.parts, state.row), attachment)
        self.release_row(state.row)
        return preempted

    def preempt(self, row: Row) -> PreemptedRow:
        """Take a member out of the group (spec 18.3). No round may be in flight."""
        state = self._states[row.index]
        preempted = self.take_out(state)
        self.host.filter_rows([member is not row for member in self.host.rows])
        return preempted

    # -- decoding ----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One scheduling step: cancel, choose depths, run or launch a round, deliver what was read (spec 6)."""
        self._cancel_aborted()
        self._pipeline.advance()

    def disturb(self) -> None:
        """Other work runs between rounds: what the next one takes says nothing about rounds."""
        self._pipeline.disturb()

    def flush(self) -> None:
        """Read the round in flight, if there is one: afterwards the host knows all that the device has done."""
        self._pipeline.flush()

    def close(self, error: BaseException) -> None:
        """Reject every row and release all; afterwards nothing of the group is live (spec 6.11)."""
        rows = list(self.host.rows)
        self._pipeline.drop()
        try:
            self.filter_rows([False] * len(rows))
        except Exception as second:  # the error that closed the group stays primary
            _LOG.error("closing the group: %r", second)
        for row in rows:
            self.host.reject(row, error)
        self.drafter.close()

    def _cancel_aborted(self) -> None:
        rows = list(self.host.rows)
        gone = [row for row in rows if row.request.abort.aborted]
        if gone:
            try:
                self.filter_rows([row not in gone for row in rows])
            finally:
                for row in gone:
                    self.host.reject(row, Cancelled(row.request.abort.reason or ""))
        if not self.host.rows:
            self._pipeline.drop()

    def end(self, row: Row, outcome: Outcome, end_id: int | None) -> None:
        """Tell the host how a row ended (spec 9.4, step 6)."""
        if outcome.kind in ("stop", "length"):
            reason: FinishReason = "length" if outcome.kind == "length" else "stop"
            self.host.finish(row, Finished(reason, end_id=None if outcome.halted else end_id))
        else:
            self.host.reject(row, outcome.error or RowFailed("row failed"))

    def publish_prefix(self, state: RowState, tokens: Sequence[int]) -> None:
        """Hand a prefix to the cache with references to its blocks; a failed publication is contained (spec 14.9)."""
        row, tables = state.row, self.parts.tables
        attachment = self.drafter.capture(row)  # it may still write: shared blocks are closed to it
        blocks = tables.share(row.index, len(tokens))
        try:
            prefix = CachedPrefix(len(tokens), blocks, {DRAFTER: attachment})
            self.parts.cache.publish(row.request, row.request.namespace or "", tokens, prefix)
        except Exception as error:
            tables.unshare(blocks)
            _LOG.warning("publishing a prefix of request %s failed: %r", row.request.id, error)
