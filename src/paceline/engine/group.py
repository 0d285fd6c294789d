"""A speculative group: rows decoded together, one round per advance (spec 6). It owns row states, not policy."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from ..core.errors import Cancelled, OutOfBlocks, RowFailed
from ..core.ports import DRAFTER, CachedPrefix, Gate, Host
from ..core.round import Outcome, RowResult
from ..core.row import Finished, FinishReason, Row
from ..core.stats import EngineStats
from ..core.transaction import release_all
from .delivery import deliver, settle
from .drafting import GuardedDrafter
from .draws import RowSampler
from .grammars import RowGrammars
from .preemption import PreemptedRow, RamTier
from .preparation import Preparation
from .round import RoundRunner, VerifiedRound
from .state import EngineParts, RowState
from .statistics import count_group_round

_LOG = logging.getLogger("paceline.engine")


class SpeculativeGroup:
    """Decodes its rows until it is closed. ``gate`` chooses depths; without one every row drafts at its cap."""

    def __init__(
        self,
        parts: EngineParts,
        host: Host,
        drafter: GuardedDrafter,
        sampler: RowSampler,
        stats: EngineStats,
        ram: RamTier,
        gate: Gate | None = None,
    ) -> None:
        self.parts = parts
        self.host = host
        self.drafter = drafter
        self.sampler = sampler
        self.ram = ram
        self.key = ""
        self._stats = stats
        self._gate = gate
        self.grammars = RowGrammars()
        self._runner = RoundRunner(parts, drafter, sampler, self.grammars)
        self._states: dict[int, RowState] = {}

    # -- membership --------------------------------------------------------------------------------------------------

    def prepare(self) -> Preparation:
        """An empty preparation: rows are admitted to it and join the group from it (spec 4.1)."""
        return Preparation(self)

    def register(self, state: RowState) -> None:
        """Make a joined row a member; the last, unfailing part of a join."""
        self._states[state.row.index] = state
        self.host.join(state.row)

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
                lambda: self.drafter.close_row(row),
                lambda: self.sampler.close_row(row),
                lambda: self.grammars.close_row(row),
                lambda: tables.release(index, clear),
                lambda: tables.release_index(index),
            ]
        )

    def take_out(self, state: RowState) -> PreemptedRow:
        """Release a row that is to go on later; its state moves to the RAM tier if that has room."""
        attachment = self.drafter.capture(state.row)
        preempted = PreemptedRow(state.row, state, self.ram.take(self.parts, state.row), attachment)
        self.release_row(state.row)
        return preempted

    def preempt(self, row: Row) -> PreemptedRow:
        """Take a member out of the group (spec 18.3)."""
        state = self._states[row.index]
        preempted = self.take_out(state)
        self.host.filter_rows([member is not row for member in self.host.rows])
        return preempted

    # -- decoding ----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One scheduling step: cancel, choose depths, run one round, deliver, commit, retire (spec 6)."""
        self._cancel_aborted()
        rows = list(self.host.rows)
        if not rows:
            return
        rows, depths = self._make_room(rows, self._depths(rows))
        verified = self._runner.run(rows, depths)
        count_group_round(self._stats, verified.results, on_device=verified.on_device, reads=verified.reads)
        outcomes = self._deliver(verified)
        self._commit(verified, outcomes)
        self._retire(verified, outcomes)

    def close(self, error: BaseException) -> None:
        """Reject every row and release all; afterwards nothing of the group is live (spec 6.11)."""
        rows = list(self.host.rows)
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

    def _depths(self, rows: Sequence[Row]) -> list[int]:
        """Depth per row: the gate's choice within each row's cap, else the cap (spec 6.3)."""
        caps = [max(0, min(row.request.draft_cap, row.remaining)) if row.drafting else 0 for row in rows]
        if self._gate is None or not any(caps):
            return caps
        return self._gate.next(rows, caps)

    def _make_room(self, rows: list[Row], depths: list[int]) -> tuple[list[Row], list[int]]:
        """Blocks for the round's windows. When the pool is short: evict prefixes, give up depth, preempt (18.3)."""
        while not self._reserve(rows, depths):
            if not self.parts.cache.evict():
                break
        else:
            return rows, depths
        for row in rows:
            self.parts.tables.trim(row.index, row.length)
        while not self._reserve(rows, [0] * len(rows)):
            if not (self.parts.cache.evict() or self.host.make_room()):
                raise OutOfBlocks(len(rows), 0)
            rows = list(self.host.rows)
        return rows, [0] * len(rows)

    def _reserve(self, rows: Sequence[Row], depths: Sequence[int]) -> bool:
        try:
            for row, depth in zip(rows, depths, strict=True):
                self.parts.free_behind_window(row, row.length)
                self.parts.tables.reserve(row.index, min(row.length + 1 + depth, row.position_limit))
        except OutOfBlocks:
            return False
        return True

    def _deliver(self, verified: VerifiedRound) -> list[Outcome]:
        """Hand each row its burst and settle its host mirror, row after row (spec 9)."""
        outcomes = []
        for row, result in zip(verified.batch.rows, verified.results, strict=True):
            outcome = deliver(self.host, row, result)
            settle(row, self._states[row.index], result, outcome)
            if outcome.kind == "continue":
                self.sampler.observe(row, result.emitted)
            outcomes.append(outcome)
        self._observe(verified.batch.rows, verified.results)
        return outcomes

    def _observe(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        """Evidence for the gate: only rounds in which a row had drafter proposals (spec 11.3)."""
        if self._gate is None:
            return
        entries = [
            (row, len(result.proposals) if result.correction is not None else result.accepted, result.accepted)
            for row, result in zip(rows, results, strict=True)
            if result.source == "draft"
        ]
        if entries:
            self._gate.observe(entries)

    def _commit(self, verified: VerifiedRound, outcomes: Sequence[Outcome]) -> None:
        """Keep 1 + retained inputs of every window, target first, then the drafter (spec 7.7). For paged KV the
        target's commit is the row's length, which :func:`settle` has set; the tables follow it."""
        rows = verified.batch.rows
        tables = self.parts.tables
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome.kind != "continue":
                tables.trim(row.index, row.length)
            elif not verified.on_device:
                tables.write_mirror(row)
        self.drafter.commit(verified.batch, verified.window, [outcome.retained for outcome in outcomes])

    def _retire(self, verified: VerifiedRound, outcomes: Sequence[Outcome]) -> None:
        """Checkpoint, release and finish the rows that ended; the others go on (spec 9.4, step 6)."""
        rows = verified.batch.rows
        if all(outcome.kind == "continue" for outcome in outcomes):
            return
        for row, outcome in zip(rows, outcomes, strict=True):
            state = self._states[row.index]
            if outcome.kind in ("stop", "length") and state.committed is not None and not row.request.abort.aborted:
                tokens = [*row.request.prompt_ids[: state.prefix_length], *state.committed]
                self.publish_prefix(state, tokens)
        bad = {row.index for row, result in zip(rows, verified.results, strict=True) if result.bad}
        try:
            self.filter_rows([outcome.kind == "continue" for outcome in outcomes], bad)
        finally:  # whatever a release did, these requests have ended
            for row, result, outcome in zip(rows, verified.results, outcomes, strict=True):
                if outcome.kind != "continue":
                    self.end(row, outcome, result.end_id)

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
