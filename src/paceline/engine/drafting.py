"""The group's view of its drafter: every call guarded, every proposal checked. A drafter can fail or lie; that costs
proposals, never tokens (spec 16.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..core.errors import DraftError
from ..core.row import Row
from ..core.stats import EngineStats
from ..core.transaction import NoChange, StateChange
from ..draft.base import DraftRows

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("paceline.engine")


class Proposals(NamedTuple):
    """Per row of a round its proposals, and the length of the match they rest on (0 = not known)."""

    tokens: list[list[int]]
    matches: list[int]


class GuardedDrafter:
    """A :class:`DraftRows` whose failures are contained.

    A row that lost its drafter has ``row.drafting == False`` and decodes plainly. ``failure`` describes the first
    failure for health reports.
    """

    def __init__(self, rows: DraftRows, vocab_size: int, stats: EngineStats) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self._stats = stats
        self._opened: dict[int, Row] = {}
        self.failure: str | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        return self._rows.taps

    @property
    def on_device(self) -> bool:
        """Whether it drafts and commits without a value from the host."""
        return self._rows.on_device

    @property
    def lags(self) -> bool:
        """Whether rounds without proposals may pass it by."""
        return self._rows.lags and not self._rows.taps

    def has(self, row: Row) -> bool:
        """Whether the drafter still works for this row."""
        return row.drafting and row.index in self._opened

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        if self._guard((row,), lambda: self._rows.open_row(row, checkpoint)):
            self._opened[row.index] = row

    def close_row(self, row: Row) -> None:
        """Close the drafter's row if it is open. A failure here is contained like any other."""
        if row.index in self._opened:
            del self._opened[row.index]
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

    def draft(self, batch: RoundBatch) -> Proposals:
        """Checked proposals per row, at most the row's depth. Rows of depth 0 or without drafter get none."""
        return self._ask(batch, self._rows.draft)

    def preview(self, batch: RoundBatch) -> Proposals | None:
        """What :meth:`draft` would propose, changing nothing; ``None`` if the drafter cannot tell."""
        if type(self._rows).preview is DraftRows.preview:
            return None
        return self._ask(batch, self._preview)

    def _preview(self, batch: RoundBatch) -> Draft:
        return self._rows.preview(batch) or Draft.from_lists([[] for _ in batch.rows])

    def _ask(self, batch: RoundBatch, call: Callable[[RoundBatch], Draft]) -> Proposals:
        found = Proposals([[] for _ in batch.rows], [0] * len(batch.rows))
        keep = [i for i, row in enumerate(batch.rows) if row.index in self._opened]
        if not any(batch.depths[i] > 0 for i in keep):
            return found
        mine = _rows_of(batch, keep)
        drafts: list[Draft] = []
        if not self._guard(mine.rows, lambda: drafts.append(self._checked(call(mine), mine))):
            return self._ask(batch, call)  # with the rows that still have a drafter: at least one fewer
        matches = drafts[0].matches or [0] * len(keep)
        for i, proposal, match in zip(keep, drafts[0].to_lists(), matches, strict=True):
            found.tokens[i] = self._legal(proposal[: batch.depths[i]])
            found.matches[i] = match
        return found

    def before_device_round(self, rows: Sequence[Row], depths: Sequence[int], width: int) -> None:
        """Tell a device drafter of a round of windows of ``width`` tokens that is about to be launched."""
        if self._rows.on_device:
            keep = [i for i, row in enumerate(rows) if row.index in self._opened]
            mine, asked = [rows[i] for i in keep], [depths[i] for i in keep]
            self._guard(mine, lambda: self._rows.before_device_round(mine, asked, width))

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft | None:
        """Proposals on the device; ``None`` if the drafter failed, which costs all rows their drafter. What the host
        can see of them is checked here, ids and lengths where the windows are laid out."""
        drafts: list[Draft] = []
        self._guard(None, lambda: drafts.append(_shaped(self._rows.draft_device(index, depths, depth), len(index))))
        return Draft(drafts[0].tokens[:, :depth], drafts[0].lengths) if drafts else None

    def direct(self) -> DirectDrafter:
        """The device half without a guard, for recording graphs: what fails then is the recording, not the drafter."""
        return DirectDrafter(self._rows)

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        """Hand a device drafter the verified windows; other drafters go by the text."""
        if self._rows.on_device and self._opened:
            self._guard(None, lambda: self._rows.commit_device(index, window, accepted))

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        """Hand the drafter the part of the window that belongs to its rows."""
        keep = [i for i, row in enumerate(batch.rows) if row.index in self._opened]
        if keep:
            mine = _rows_of(batch, keep)
            kept = [accepted[i] for i in keep]
            self._guard(mine.rows, lambda: self._rows.commit(mine, _select(window, keep), kept))

    def commit_round(
        self, batch: RoundBatch, window: Window, accepted: Sequence[int], from_spans: Sequence[bool]
    ) -> None:
        """Commit a round's windows: the drafter's own and plain ones, then those that spans proposed (spec 7.7)."""
        own = [i for i, span in enumerate(from_spans) if not span]
        if len(own) == len(from_spans):
            self.commit(batch, window, accepted)
            return
        if own:
            self.commit(_rows_of(batch, own), _select(window, own), [accepted[i] for i in own])
        others = [i for i, span in enumerate(from_spans) if span]
        self.consume(_rows_of(batch, others), _select(window, others), [1 + accepted[i] for i in others])

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        """Hand the drafter windows that others proposed: of each it keeps the first ``counts`` inputs."""
        keep = [i for i, row in enumerate(batch.rows) if row.index in self._opened]
        if keep:
            mine = _rows_of(batch, keep)
            kept = [counts[i] for i in keep]
            self._guard(mine.rows, lambda: self._rows.consume(mine, _select(window, keep), kept))

    def capture(self, row: Row) -> Any | None:
        """What the drafter needs to go on with this row later."""
        kept: list[Any] = []
        if row.index in self._opened:
            self._guard((row,), lambda: kept.append(self._rows.capture(row, row.length)))
        return kept[0] if kept else None

    def close(self) -> None:
        self._guard((), self._rows.close)

    def _checked(self, draft: Draft, batch: RoundBatch) -> Draft:
        if draft.lists is not None and len(draft.lists) == len(batch.rows):
            return draft
        lengths = _shaped(draft, len(batch.rows)).lengths.tolist()
        if any(not 0 <= n <= draft.tokens.shape[1] for n in lengths):
            raise DraftError(f"draft() returned lengths {lengths} for {draft.tokens.shape[1]} columns")
        return draft

    def _legal(self, proposal: list[int]) -> list[int]:
        """The proposal up to its first id outside the target's vocabulary (padded draft vocabularies, case S07)."""
        for place, token in enumerate(proposal):
            if not 0 <= token < self._vocab_size:
                return proposal[:place]
        return proposal

    def _guard(self, rows: Sequence[Row] | None, call: Callable[[], object]) -> bool:
        """Run ``call``; on failure the rows at fault (``None`` = all there are) go on without a drafter."""
        try:
            call()
        except Exception as error:
            named = getattr(error, "row", None)
            asked = list(self._opened.values()) if rows is None else list(rows)
            self.fail(error, [row for row in asked if row is named] or asked)
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
                del self._opened[row.index]
                try:
                    self._rows.close_row(row)
                except Exception as error:
                    _LOG.debug("closing the drafter's row after a failure failed too: %r", error)


class DirectDrafter:
    """What a device round needs of a drafter, as it is: nothing depends on which rows are open."""

    def __init__(self, rows: DraftRows) -> None:
        self._rows = rows
        self.taps = rows.taps
        self.on_device = rows.on_device

    def direct(self) -> DirectDrafter:
        return self

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft | None:
        return self._rows.draft_device(index, depths, depth)

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        if self.on_device:
            self._rows.commit_device(index, window, accepted)


def _shaped(draft: Draft, rows: int) -> Draft:
    """The draft, if it has an entry for each of ``rows`` rows."""
    if draft.tokens.ndim != 2 or draft.tokens.shape[0] != rows or draft.lengths.shape != (rows,):
        raise DraftError(
            f"a draft must be tokens [{rows}, K] and lengths [{rows}], "
            f"not {tuple(draft.tokens.shape)} and {tuple(draft.lengths.shape)}"
        )
    return draft


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
