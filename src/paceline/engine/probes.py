"""Dummy rows over the real row tables and KV store, to time what rounds and drafts cost before any request runs.

They take indices and blocks like rows do and give all of it back. Legend: B rows, N flat tokens, H hidden, K depth.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..core.batch import ForwardBatch, RoundBatch, Window
from ..core.errors import OutOfBlocks
from ..core.params import SamplingParams
from ..core.request import Request
from ..core.row import Row
from ..core.transaction import apply_state_changes, release_all
from ..sampling.draw import draw
from ..sampling.params import DrawParams
from .sweep import Point

if TYPE_CHECKING:
    from ..cache.tables import RowTables
    from ..draft.base import DraftRows
    from ..models.binding import TargetBinding
    from .drafting import GuardedDrafter


class DummyRows:
    """Up to ``count`` row indices, for as long as it is open. :meth:`place` gives the first of them blocks."""

    def __init__(self, tables: RowTables, count: int) -> None:
        self.tables = tables
        taken = (tables.acquire_index() for _ in range(min(count, tables.free_indices)))
        self.indices = [index for index in taken if index is not None]
        self._placed = (0, 0, 0)

    def place(self, rows: int, context: int, upto: int) -> bool:
        """Blocks for positions ``context`` to ``upto`` (and all before that are seen from there) of the first ``rows``
        rows, in place of what they held; false if the pools cannot hold that."""
        if (rows, context, upto) == self._placed:
            return True
        self.clear()
        tables = self.tables
        skip = {group.name: group.first_visible(context) // tables.block_size for group in tables.groups}
        try:
            for index in self.indices[:rows]:
                tables.reserve(index, upto, skip)
        except OutOfBlocks:
            self.clear()
            return False
        for group in tables.groups:  # uploaded now, not while a run is timed
            tables.block_table(group.name)
        self.wait()
        self._placed = (rows, context, upto)
        return True

    def fits(self, point: Point) -> bool:
        """Whether rows of a context (the last number) may have a window (the second) at once."""
        rows, width, context = point
        upto = context + width
        return rows <= len(self.indices) and upto <= self.tables.max_model_len and self.place(rows, context, upto)

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.tables.device.type == "cuda":
            torch.cuda.synchronize(self.tables.device)

    def clear(self) -> None:
        """Give the blocks back, the indices not yet."""
        self._placed = (0, 0, 0)
        release_all(partial(self.tables.release, index) for index in self.indices)

    def close(self) -> None:
        """Give everything back."""
        self.clear()
        release_all(partial(self.tables.release_index, index) for index in self.indices)
        self.indices = []


class TargetProbe:
    """Runs rounds of dummy rows: layout, forward, logits, greedy draws, one read. Calling it gives seconds."""

    def __init__(self, target: TargetBinding, rows: DummyRows, taps: Sequence[int] = ()) -> None:
        self._target = target
        self._rows = rows
        self._taps = tuple(taps)

    def __call__(self, point: Point) -> float:
        """One round of ``rows`` windows of ``width`` tokens behind ``context`` tokens each."""
        rows, width, context = point
        if not self._rows.place(rows, context, context + width):
            raise OutOfBlocks(rows, 0)
        indices = self._rows.indices[:rows]
        tokens = [[(17 * row + 31 * place) % self._target.vocab_size for place in range(width)] for row in range(rows)]
        start = time.perf_counter()
        ends = [context + width] * rows
        batch = self._rows.tables.forward_batch(indices, tokens, [context] * rows, ends)
        logits = self._target.logits(self._target.forward(batch, self._taps).hidden)
        drawn = draw(logits, self._params(indices, width))
        drawn.tokens.tolist(), drawn.bad.tolist()
        return time.perf_counter() - start

    def _params(self, indices: Sequence[int], width: int) -> DrawParams:
        tables = self._rows.tables
        owners = torch.tensor([index for index in indices for _ in range(width)], device=tables.device)
        offsets = torch.tensor([place for _ in indices for place in range(width)], device=tables.device)
        return DrawParams(
            temperature=tables.temperature[owners],
            top_k=tables.top_k[owners],
            top_p=tables.top_p[owners],
            min_p=tables.min_p[owners],
            seed=tables.seed[owners],
            step=tables.step[owners] + offsets,
            all_greedy=True,
            any_filter=False,
        )


class OpenedRows:
    """Dummy rows that a drafter has been fed ``context`` tokens of. Close them before others are opened on the same
    indices. ``features`` stand in for what the drafter reads of the target."""

    def __init__(
        self, drafter: DraftRows | GuardedDrafter, rows: DummyRows, count: int, context: int, features: Features
    ) -> None:
        self._drafter = drafter
        self._place = rows
        self._tables = rows.tables
        self._features = features
        self.rows: list[Row] = []
        try:
            for number in range(count):
                self._open(rows.indices[number], number, context)
        except BaseException:
            self.close()
            raise

    def reserve(self, row: Row, depth: int) -> None:
        """Blocks for one round."""
        self._tables.reserve(row.index, row.length + 1 + depth)

    def wait(self) -> None:
        """Until the device has done all it was given."""
        self._place.wait()

    def follow(self, row: Row, drawn: Sequence[int], accepted: int) -> None:
        """A round gave the row ``drawn`` tokens; the host's mirror of it goes along."""
        row.length += 1 + accepted
        row.pending = drawn[-1]
        row.tokens.extend(drawn)
        row.step += len(drawn)
        row.generated += len(drawn)

    def close(self) -> None:
        """Close the drafter's rows and give their blocks back."""
        rows, self.rows = self.rows, []
        release_all([*(partial(self._drafter.close_row, row) for row in rows), self._place.clear])

    def _open(self, index: int, number: int, context: int) -> None:
        """One row with a prompt of ``context`` tokens, prefilled and joined."""
        vocab = self._features.vocab_size
        prompt = tuple((13 * place + 7 * number + place * place) % vocab for place in range(context))
        most = self._tables.max_model_len - context
        request = Request(f"costs-{number}", prompt, SamplingParams(temperature=0.0), most, (), number, 64)
        row = Row(request, index, list(prompt))
        self._tables.reserve(index, context)
        self._tables.write_row(row)
        self._drafter.open_row(row, None)
        self.rows.append(row)
        chunk = self._features.chunk
        for begin in range(0, context, chunk):
            part = prompt[begin : begin + chunk]
            batch = self._tables.forward_batch([index], [part], [begin], [context])
            self._drafter.prefill([row], batch, self._features.of(len(part), self._tables.device))
            row.length = begin + len(part)
        self.follow(row, [context % vocab], -1)
        self._tables.write_mirror(row)
        apply_state_changes([partial(self._drafter.prepare_join, row)])


class DraftProbe:
    """Drafts and commits rounds of opened rows on the host's word. Calling it gives seconds of (rows, depth, context).

    No proposal is ever right here: each run leaves one token more in the rows.
    """

    def __init__(self, drafter: DraftRows, opened: OpenedRows, tables: RowTables, features: Features) -> None:
        self._drafter = drafter
        self._opened = opened
        self._tables = tables
        self._features = features

    def __call__(self, point: Point) -> float:
        count, depth, _ = point
        rows = self._opened.rows[:count]
        for row in rows:
            self._opened.reserve(row, depth)
        indices = torch.tensor([row.index for row in rows], dtype=torch.int64, device=self._tables.device)
        batch = RoundBatch(rows, indices, [depth] * count)
        self._opened.wait()
        start = time.perf_counter()
        proposals = self._drafter.draft(batch).to_lists()
        drafted = time.perf_counter() - start
        window = self._window(rows, proposals)
        for row in rows:
            self._opened.follow(row, [(row.length * 29 + row.index) % self._features.vocab_size], 0)
            self._tables.write_mirror(row)
        self._opened.wait()
        start = time.perf_counter()
        self._drafter.commit(batch, window, [0] * count)
        self._opened.wait()
        return drafted + time.perf_counter() - start

    def _window(self, rows: Sequence[Row], proposals: Sequence[list[int]]) -> Window:
        """The verify window as the target would have run it, with made-up features."""
        tokens = [[row.pending, *proposal] for row, proposal in zip(rows, proposals, strict=True)]
        limits = [row.position_limit for row in rows]
        batch: ForwardBatch = self._tables.forward_batch(
            [row.index for row in rows], tokens, [row.length for row in rows], limits
        )
        return Window(batch, self._features.of(batch.tokens.shape[0], self._tables.device))


class Features:
    """Stands in for what the target gives a drafter: ``width`` numbers per token, in prompt chunks of ``chunk``."""

    def __init__(self, target: TargetBinding, taps: Sequence[int], chunk: int) -> None:
        self.vocab_size = target.vocab_size
        self.chunk = chunk
        self._width = target.hidden_size * max(1, len(taps))
        self._dtype = target.kv_dtype

    def of(self, count: int, device: torch.device) -> torch.Tensor:
        """[count, width], small numbers."""
        return torch.full((count, self._width), 0.01, dtype=self._dtype, device=device)


class NothingForced:
    """Constraint port of rows without a grammar."""

    def forced_tokens(self, row: Any, max_tokens: int) -> list[int]:
        return []
