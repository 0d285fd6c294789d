"""Rows of an EAGLE-3 drafter: coverage, the taps not yet used, drafting in chains, on the device and for the host.

A row's coverage is the number of leading places whose pair (token x_q, hidden h_(q-1)) is stored; it lags behind the
target and is made up for before the row drafts, from the history column and a ring of taps (spec 15.11).
Legend: R rows of the tables, B rows, C columns, K depth, W window, H hidden, T taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ...core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..base import DraftRows, DrawPort
from ._eagle_layer import Eagle3Model, Pairs
from ._eagle_places import TAP_RING, Placer

if TYPE_CHECKING:
    from ...cache.tables import RowTables
    from ...core.row import Row

PIECE = TAP_RING // 2
"""Most taps that enter the ring at once: so many places are free before every round."""

#: Draws the next proposals [B] from logits [B, N] for the given offset from the rows' step.
DrawStep = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Attachment:
    """What another row needs to go on from a prefix of ``length`` tokens: the ``tap`` [T * target hidden] of its last
    position (``None`` if it is lost) and the ``first`` place that holds a pair."""

    length: int
    first: int
    tap: torch.Tensor | None


class Eagle3Rows(DraftRows):
    """State of the rows, most of it in columns of the device; the host knows bounds only."""

    shifted = True
    on_device = True

    def __init__(self, layer: Eagle3Model, tables: RowTables, draw: DrawPort, placer: Placer) -> None:
        self.taps = layer.shape.taps
        self._layer = layer
        self._tables = tables
        self._draw = draw
        self._placer = placer
        #: Per row, on the host: tokens of a row in prefill that are covered.
        self._prefilled: dict[int, int] = {}
        #: Per row, on the host: its first place that holds a pair.
        self._first: dict[int, int] = {}
        #: Per row, on the host: most positions by which coverage may lag behind the target's length (-1: ahead by one).
        self._lag: dict[int, int] = {}

    # -- membership and prefill ----------------------------------------------------------------------------------------

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        known = checkpoint if isinstance(checkpoint, Attachment) else Attachment(0, 1, None)
        self._prefilled[row.index], self._lag[row.index] = known.length, 0
        self._set_first(row, known.first)
        index = self._index([row])
        self._placer.coverage.covered[index] = known.length
        if known.tap is not None:
            self._keep([row], [known.length - 1], known.tap.view(1, 1, -1), [1])
        self._placer.publish(index)

    def close_row(self, row: Row) -> None:
        for known in (self._prefilled, self._lag, self._first):
            known.pop(row.index, None)

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: torch.Tensor) -> None:
        """Pair each token of a chunk with the tap before it; the tap of the chunk's last token waits in the ring."""
        flat = 0
        for place, row in enumerate(rows):
            start, count = batch.context_lens[place], batch.query_lens[place]
            part = slice(flat, flat + count)
            if (
                start != self._prefilled[row.index]
            ):  # a prefix without the drafter's state: its pairs are not to be read
                self._set_first(row, start + 1)
            self._prefill_row(row, batch, place, part, context[part])
            self._keep([row], [start], context[part].unsqueeze(0), [count])
            self._prefilled[row.index] = start + count
            flat += count
        index = batch.indices
        self._placer.coverage.covered[index] = self._column([self._prefilled[row.index] for row in rows])
        self._placer.publish(index)

    def _prefill_row(self, row: Row, batch: ForwardBatch, place: int, part: slice, context: torch.Tensor) -> None:
        start, index = batch.context_lens[place], batch.indices[place : place + 1]
        before = self._placer.ring.get(index, self._column([[max(start - 1, 0)]]))[0]
        taps = torch.cat([before, context[:-1].to(before.dtype)])
        skipped = max(0, self._first[row.index] - start)
        if skipped < len(taps):
            pairs = self._placer.chunk(batch, place, slice(part.start + skipped, part.stop), self._first[row.index])
            self._layer.forward(batch.tokens[part][skipped:], self._layer.fuse(taps[skipped:]), pairs)

    def _set_first(self, row: Row, first: int) -> None:
        self._first[row.index] = first
        self._placer.coverage.first[self._index([row])] = first

    # -- rounds of the host --------------------------------------------------------------------------------------------

    def draft(self, batch: RoundBatch) -> Draft:
        return self._propose(batch)

    def preview(self, batch: RoundBatch) -> Draft | None:
        """As :meth:`draft`: what it stores beyond the row's length is stored again when it is true."""
        return self._propose(batch)

    def _propose(self, batch: RoundBatch) -> Draft:
        depth = max(batch.depths, default=0)
        drafting = [row for row, wanted in zip(batch.rows, batch.depths, strict=True) if wanted > 0]
        self._catch_up([row for row in drafting if self._lag[row.index] > depth])

        def draw(logits: torch.Tensor, offset: int) -> torch.Tensor:
            return self._draw.sample(logits, batch.rows, offset, self._layer.ids)

        drafted = self._chain(batch.indices, self._column(batch.depths), depth, draw)
        self._lag.update((row.index, -1) for row in drafting)
        return drafted

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        self._take(batch.rows, window, [1 + kept for kept in accepted])

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        self._take(batch.rows, window, counts)

    def _take(self, rows: Sequence[Row], window: Window, counts: Sequence[int]) -> None:
        """Keep the taps of the first ``counts`` inputs of each row's window. The columns may have advanced already."""
        batch, widest = window.batch, max(window.batch.query_lens)
        index, starts = self._index(rows), self._column(batch.context_lens)
        self._make_room(rows, starts)
        pieces = torch.split(window.context, list(batch.query_lens))
        taps = torch.stack([F.pad(piece, (0, 0, 0, widest - len(piece))) for piece in pieces])
        self._absorb(index, starts, taps, self._column(counts))
        for row, count in zip(rows, counts, strict=True):
            self._lag[row.index] = self._lag[row.index] + count if widest <= PIECE else 0

    # -- rounds of the device ------------------------------------------------------------------------------------------

    def before_device_round(self, rows: Sequence[Row], depths: Sequence[int], width: int) -> None:
        """Catch up with whatever the round itself cannot take in, or the ring cannot hold."""
        depth = max(depths, default=0)
        lags = self._lag
        drafting = [row for row, wanted in zip(rows, depths, strict=True) if wanted > 0]
        self._catch_up([row for row in drafting if lags[row.index] > depth])
        self._make_room(rows, None)
        lags.update((row.index, -1) for row in drafting)
        lags.update((row.index, lags[row.index] + width if width <= PIECE else 0) for row in rows)

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        def draw(logits: torch.Tensor, offset: int) -> torch.Tensor:
            return self._draw.sample_device(logits, index, offset, self._layer.ids)

        return self._chain(index, depths, depth, draw)

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        rows = len(index)
        taps = window.context.view(rows, -1, window.context.shape[-1])
        self._absorb(index, window.batch.positions.view(rows, -1)[:, 0], taps, accepted + 1)

    def _absorb(self, index: torch.Tensor, starts: torch.Tensor, taps: torch.Tensor, counts: torch.Tensor) -> None:
        """Keep the first ``counts`` [B] of ``taps`` [B, W, ..] from positions ``starts`` on; a window too wide for the
        ring is used up piece by piece."""
        width = taps.shape[1]
        if width <= PIECE:
            self._placer.keep(index, starts, taps, counts)
            return
        for first in range(0, width, PIECE):
            part = (counts - first).clamp(0, PIECE)
            self._placer.keep(index, starts + first, taps[:, first : first + PIECE], part)
            self._run_lag(index, TAP_RING, (part > 0) & self._tables.live[index], starts + first + part)

    # -- coverage ------------------------------------------------------------------------------------------------------

    def catch_up(self, rows: Sequence[Row]) -> None:
        self._catch_up([row for row in rows if self._lag[row.index] > 0])

    def capture(self, row: Row, length: int) -> Any | None:
        self.catch_up([row])
        tap = self._placer.ring.get(self._index([row]), self._column([[length - 1]]))[0, 0].clone() if length else None
        return Attachment(length, self._first[row.index], tap)

    def close(self) -> None:
        for known in (self._prefilled, self._lag, self._first):
            known.clear()

    def _make_room(self, rows: Sequence[Row], lengths: torch.Tensor | None) -> None:
        """Catch up with rows whose ring cannot take another piece; ``lengths`` [B]: see :meth:`_run_lag`."""
        full = [place for place, row in enumerate(rows) if self._lag[row.index] >= TAP_RING - PIECE]
        self._catch_up([rows[place] for place in full], lengths if lengths is None else lengths[full])

    def _catch_up(self, rows: Sequence[Row], lengths: torch.Tensor | None = None) -> None:
        """Store the pairs that lag, in one pass; what the host does not know is read from the columns."""
        if not rows:
            return
        index = self._index(rows)
        columns = min(TAP_RING, 1 << max(self._lag[row.index] for row in rows).bit_length())
        self._run_lag(index, columns, self._tables.live[index], lengths)
        self._lag.update((row.index, -1) for row in rows)

    # -- the model -----------------------------------------------------------------------------------------------------

    def _chain(self, index: torch.Tensor, depths: torch.Tensor, depth: int, draw: DrawStep) -> Draft:
        """Store what lags and the pair of the pending token, then feed each proposal with its own hidden state."""
        tables = self._tables
        drafting = tables.live[index] & (depths > 0)
        lengths = torch.where(drafting, depths.clamp(max=depth), 0)
        tokens = torch.zeros(len(index), depth, dtype=torch.int32, device=tables.device)
        if not depth:
            return Draft(tokens, lengths.to(torch.int32))
        hidden, pairs = self._run_lag(index, depth + 1, drafting)
        for offset in range(depth):
            drawn = draw(self._layer.logits(hidden), offset)
            tokens[:, offset] = drawn
            if offset + 1 < depth:
                pairs = self._placer.step(index, offset, drafting, pairs)
                hidden = self._layer.forward(drawn, hidden, pairs)
        return Draft(tokens, lengths.to(torch.int32))

    def _run_lag(
        self, index: torch.Tensor, columns: int, wanted: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Pairs]:
        """Store the missing pairs among the newest ``columns`` ones of the rows ``wanted`` [B], up to that of the token
        at ``lengths`` [B] (default: the pending token); hidden [B, H] of that one, and where they went."""
        lag = self._placer.lag(index, columns, wanted, self._tables.length[index] if lengths is None else lengths)
        hidden = self._layer.forward(lag.tokens, self._layer.fuse(lag.taps), lag.pairs)
        return hidden.view(len(index), columns, -1)[:, -1], lag.pairs

    # -- columns -------------------------------------------------------------------------------------------------------

    def _keep(self, rows: Sequence[Row], starts: Sequence[int], taps: torch.Tensor, counts: Sequence[int]) -> None:
        taps = taps.to(self._tables.device)
        self._placer.keep(self._index(rows), self._column(starts), taps, self._column(counts))

    def _index(self, rows: Sequence[Row]) -> torch.Tensor:
        return self._column([row.index for row in rows])

    def _column(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._tables.device)
