"""The group's view of its drafter: every call guarded, every proposal checked. A drafter can fail or lie; that costs
proposals, never tokens (spec 16.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..core.errors import DraftError
from ..core.row import Row
from ..core.stats import EngineStats
from ..core.transaction import NoChange, StateChange
from ..draft.base import DraftRows

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("paceline.engine")


class GuardedDrafter:
    """A :class:`DraftRows` whose failures are contained.

    A row that lost its drafter has ``row.drafting == False`` and decodes plainly. ``failure`` describes the first
    failure for health reports.
    """

    def __init__(self, rows: DraftRows, vocab_size: int, stats: EngineStats) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self._stats = stats
        self._opened: set[int] = set()
        self.failure: str | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        return self._rows.taps

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        if self._guard((row,), lambda: self._rows.open_row(row, checkpoint)):
            self._opened.add(row.index)

    def close_row(self, row: Row) -> None:
        """Close the drafter's row if it is open. A failure here is contained like any other."""
        if row.index in self._opened:
            self._opened.discard(row.index)
            self._guard((row,), lambda: self._rows.close_row(row))

    def prepare_join(self, row: Row) -> StateChange:
        """The drafter's part of a join. If preparing it fails the row joins without a drafter (spec 5.1 b)."""
        changes: list[StateChange] = []
        if row.index in self._opened:
            self._guard((row,), lambda: changes.append(self._rows.prepare_join(row)))
        return changes[0] if changes else NoChange()

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: torch.Tensor) -> None:
        keep = [i for i, row in enumerate(rows) if row.index in self._opened]
        if keep:
            mine = [rows[i] for i in keep]
            window = _select(Window(batch, context), keep)
            self._guard(mine, lambda: self._rows.prefill(mine, window.batch, window.context))

    def draft(self, batch: RoundBatch) -> list[list[int]]:
        """Checked proposals per row, at most the row's depth. Rows of depth 0 or without drafter get none."""
        proposals: list[list[int]] = [[] for _ in batch.rows]
        keep = [i for i, row in enumerate(batch.rows) if row.index in self._opened]
        if not any(batch.depths[i] > 0 for i in keep):
            return proposals
        mine = _rows_of(batch, keep)
        drafts: list[Draft] = []
        if self._guard(mine.rows, lambda: drafts.append(self._checked(self._rows.draft(mine), mine))):
            for i, proposal in zip(keep, drafts[0].to_lists(), strict=True):
                proposals[i] = self._legal(proposal[: batch.depths[i]])
            return proposals
        return self.draft(batch)  # with the rows that still have a drafter: at least one fewer

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        """Hand the drafter the part of the window that belongs to its rows."""
        keep = [i for i, row in enumerate(batch.rows) if row.index in self._opened]
        if keep:
            mine = _rows_of(batch, keep)
            kept = [accepted[i] for i in keep]
            self._guard(mine.rows, lambda: self._rows.commit(mine, _select(window, keep), kept))

    def capture(self, row: Row) -> Any | None:
        """What the drafter needs to go on with this row later."""
        kept: list[Any] = []
        if row.index in self._opened:
            self._guard((row,), lambda: kept.append(self._rows.capture(row, row.length)))
        return kept[0] if kept else None

    def close(self) -> None:
        self._guard((), self._rows.close)

    def _checked(self, draft: Draft, batch: RoundBatch) -> Draft:
        count = len(batch.rows)
        if draft.tokens.ndim != 2 or draft.tokens.shape[0] != count or draft.lengths.shape != (count,):
            raise DraftError(
                f"draft() must return tokens [{count}, K] and lengths [{count}], "
                f"not {tuple(draft.tokens.shape)} and {tuple(draft.lengths.shape)}"
            )
        lengths = draft.lengths.tolist()
        if any(not 0 <= n <= draft.tokens.shape[1] for n in lengths):
            raise DraftError(f"draft() returned lengths {lengths} for {draft.tokens.shape[1]} columns")
        return draft

    def _legal(self, proposal: list[int]) -> list[int]:
        """The proposal up to its first id outside the target's vocabulary (padded draft vocabularies, case S07)."""
        for place, token in enumerate(proposal):
            if not 0 <= token < self._vocab_size:
                return proposal[:place]
        return proposal

    def _guard(self, rows: Sequence[Row], call: Callable[[], object]) -> bool:
        """Run ``call``; on failure the rows at fault go on without a drafter."""
        try:
            call()
        except Exception as error:
            named = getattr(error, "row", None)
            self.fail(error, [row for row in rows if row is named] or list(rows))
            return False
        return True

    def fail(self, error: Exception, lost: Sequence[Row]) -> None:
        """Count a failure; the rows ``lost`` to it go on without a drafter. The first one is logged."""
        self._stats.drafter_failures += 1
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            _LOG.warning("drafter failed, %d rows decode without it: %s", len(lost), self.failure, exc_info=error)
        for row in lost:
            row.drafting = False
        self._close_lost(lost)

    def _close_lost(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.index in self._opened:
                self._opened.discard(row.index)
                try:
                    self._rows.close_row(row)
                except Exception as error:
                    _LOG.debug("closing the drafter's row after a failure failed too: %r", error)


def _rows_of(batch: RoundBatch, keep: Sequence[int]) -> RoundBatch:
    if len(keep) == len(batch.rows):
        return batch
    return RoundBatch([batch.rows[i] for i in keep], batch.indices[list(keep)], [batch.depths[i] for i in keep])


def _select(window: Window, keep: Sequence[int]) -> Window:
    """The part of a window that belongs to some of its rows, in the same order."""
    batch = window.batch
    if len(keep) == batch.num_rows:
        return window
    starts = [0, *accumulate(batch.query_lens)]
    flat = [place for i in keep for place in range(starts[i], starts[i + 1])]
    rows = list(keep)
    part = ForwardBatch(
        tokens=batch.tokens[flat],
        positions=batch.positions[flat],
        indices=batch.indices[rows],
        query_lens=[batch.query_lens[i] for i in keep],
        context_lens=[batch.context_lens[i] for i in keep],
        slots={group: slots[flat] for group, slots in batch.slots.items()},
        block_tables={group: table[rows] for group, table in batch.block_tables.items()},
    )
    return Window(part, window.context[flat])
