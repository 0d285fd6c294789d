"""Preemption: a row gives its blocks back and later goes on exactly where it stood (spec 18.3).

Its state moves to host memory while the RAM tier has room; otherwise it is rebuilt by replaying its recorded prefill
steps and then its generated tokens through windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cache.snapshot import RowSnapshot, restore_snapshot, snapshot_bytes, take_snapshot
from ..core.errors import OutOfBlocks
from ..core.row import Row
from ..core.transaction import release_all
from .state import EngineParts, PrefillStep, RowState

#: Generated tokens are replayed through windows of this many positions.
REPLAY_WINDOW = 8


@dataclass(eq=False)
class PreemptedRow:
    """A row without index and blocks. ``snapshot``: its state on the host, ``None`` = to be replayed; ``attachment``:
    what its drafter captured."""

    row: Row
    state: RowState
    snapshot: RowSnapshot | None
    attachment: Any | None = None

    @property
    def blocks_wanted(self) -> int:
        """Positions that need blocks before the row can go on: its inputs and one round of its greatest depth."""
        return min(self.row.length + 1 + self.row.request.draft_cap, self.row.position_limit)


class RamTier:
    """Host memory for preempted state, bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def take(self, parts: EngineParts, row: Row) -> RowSnapshot | None:
        """The row's KV on the host, or ``None`` if it does not fit."""
        store = parts.tables.store
        if store is None or self.used + snapshot_bytes(parts.tables, store, row.index, row.length) > self.max_bytes:
            return None
        snapshot = take_snapshot(parts.tables, store, row.index, row.length)
        self.used += snapshot.nbytes
        return snapshot

    def drop(self, snapshot: RowSnapshot | None) -> None:
        """Forget a snapshot that was restored or whose row is gone."""
        if snapshot is not None:
            self.used -= snapshot.nbytes


def restore_state(parts: EngineParts, preempted: PreemptedRow) -> None:
    """Give the row an index and blocks again and put its snapshot back, if it has one. All or nothing."""
    tables, row = parts.tables, preempted.row
    index = tables.acquire_index()
    if index is None:
        raise OutOfBlocks(1, 0)
    try:
        if preempted.snapshot is not None and tables.store is not None:
            restore_snapshot(tables, tables.store, index, preempted.snapshot)
        tables.reserve(index, preempted.blocks_wanted, sliding=preempted.snapshot is not None)
    except BaseException:
        release_all([lambda: tables.release(index), lambda: tables.release_index(index)])
        raise
    row.index = index
    tables.write_row(row)


class ReplaySpan:
    """Steps that rebuild a row of ``end`` inputs: its recorded prefill steps, then windows over what it generated."""

    def __init__(self, plan: Sequence[PrefillStep], chunk: int, end: int) -> None:
        self.end = end
        starts = range(0, plan[0].start if plan else 0, chunk)
        before = [PrefillStep(start, min(start + chunk, plan[0].start), final=False) for start in starts]
        self._steps = {step.start: step.end for step in (*before, *plan)}

    def step_at(self, position: int) -> PrefillStep:
        end = min(self._steps.get(position, position + REPLAY_WINDOW), self.end)
        return PrefillStep(position, end, final=end == self.end)
