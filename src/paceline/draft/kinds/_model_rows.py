"""Rows of a drafter that is a language model of its own: how far its KV reaches, catching up, drafting, rolling back.

A row's coverage is the number of leading tokens of its text whose KV is the drafter's. Between rounds it is at most the
target's length and one less after a round that accepted everything; it may lag further, since catching up is lazy.
Legend: B rows, K depth, N flat tokens, H hidden, V logits drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ...core.batch import Draft, ForwardBatch, RoundBatch, Window
from ...core.errors import DraftError, OutOfBlocks
from ..base import DraftRows, DrawPort

if TYPE_CHECKING:
    from ...cache.tables import RowTables
    from ...core.row import Row
    from ...models.binding import TargetBinding

GROUP = "draft"
"""Block group of the drafter's layers."""

CHUNK, SMALL_LAG = 512, 64
"""Where rows together are further behind than the first, those further behind than the second are brought near one by
one, in forwards of at most the first. Both in tokens."""


class RowDraftError(DraftError):
    """One row cannot be drafted for; the others can."""

    def __init__(self, row: Row, message: str) -> None:
        super().__init__(f"request {row.request.id}: {message}")
        self.row = row


class DraftForward:
    """Runs the model over its block group of the tables. ``ids``: logits are cut to the ids below this.

    ``limit``: positions that the model has; the row tables may have more.
    """

    def __init__(self, model: TargetBinding, tables: RowTables, ids: int) -> None:
        self._model = model
        self._names = [group.name for group in model.kv_groups]
        self._ids = ids
        self.tables = tables
        self.limit = model.max_model_len

    def batch(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]], contexts: Sequence[int]) -> ForwardBatch:
        """Row i runs ``tokens[i]`` at positions ``contexts[i]`` ..., in the model's own block groups."""
        batch = self.tables.forward_batch(
            [row.index for row in rows], tokens, contexts, [row.position_limit for row in rows], groups=(GROUP,)
        )
        slots, table = batch.slots[GROUP], batch.block_tables[GROUP]
        return replace(batch, slots=dict.fromkeys(self._names, slots), block_tables=dict.fromkeys(self._names, table))

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [N, H]. Ids that only the target has are read as the model's last one."""
        tokens = batch.tokens.clamp(max=self._model.vocab_size - 1)
        return self._model.forward(replace(batch, tokens=tokens)).hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, H] -> [B, V] over the ids that both models have."""
        return self._model.logits(hidden)[:, : self._ids]


class ModelRows(DraftRows):
    """State of the rows: their coverage, mirrored in the column ``draft_length``."""

    lags = True

    def __init__(self, forward: DraftForward, draw: DrawPort) -> None:
        self._forward = forward
        self._draw = draw
        self._covered: dict[int, int] = {}

    def covered(self, row: Row) -> int:
        """Tokens of the row's text whose KV is there."""
        return self._covered[row.index]

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        self._covered[row.index] = 0 if checkpoint is None else min(int(checkpoint), row.length)
        self._publish([row])

    def close_row(self, row: Row) -> None:
        self._covered.pop(row.index, None)

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: torch.Tensor) -> None:
        """Feed the chunk, and whatever before it is missing; rows that will never be drafted for are left out."""
        going: list[Row] = []
        ends: list[int] = []
        for row, start, count in zip(rows, batch.context_lens, batch.query_lens, strict=True):
            self._covered[row.index] = min(self._covered[row.index], start)
            if self._has_room(max(row.prompt_tokens, row.length)):
                if self._covered[row.index] < start:
                    self._own_blocks(row)
                going.append(row)
                ends.append(start + count)
        self._advance(going, ends)
        self._publish(rows)

    def draft(self, batch: RoundBatch) -> Draft:
        return self._propose(batch)

    def preview(self, batch: RoundBatch) -> Draft | None:
        draft = self._propose(batch)
        self._roll_back(batch.rows, [row.length for row in batch.rows])
        return draft

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        starts = window.batch.context_lens
        self._roll_back(batch.rows, [start + 1 + kept for start, kept in zip(starts, accepted, strict=True)])

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        """Others proposed: of this window the drafter has seen nothing that it could keep."""
        self._roll_back(batch.rows, window.batch.context_lens)

    def catch_up(self, rows: Sequence[Row]) -> None:
        going = [row for row in rows if self._covered[row.index] < row.length and self._has_room(row.length)]
        self._advance(going, [row.length for row in going])
        self._publish(going)

    def capture(self, row: Row, length: int) -> Any | None:
        """The coverage, which whoever reuses the row's blocks starts with."""
        self.catch_up([row])
        return min(self._covered[row.index], length)

    def close(self) -> None:
        self._covered.clear()

    # -- drafting and feeding ------------------------------------------------------------------------------------------

    def _propose(self, batch: RoundBatch) -> Draft:
        """Feed what is missing and the pending token of all rows, then token by token what was drawn."""
        depths = [self._depth(row, depth) for row, depth in zip(batch.rows, batch.depths, strict=True)]
        device = self._forward.tables.device
        tokens = torch.zeros(len(depths), max(depths, default=0), dtype=torch.int32, device=device)
        going = [i for i, depth in enumerate(depths) if depth > 0]
        drawn = torch.empty(0, dtype=torch.int64, device=device)
        for offset in range(tokens.shape[1]):
            rows = [batch.rows[i] for i in going]
            hidden = self._step(rows, drawn, offset) if offset else self._advance(rows, [r.length + 1 for r in rows])
            drawn = self._draw.sample(self._forward.logits(hidden), rows, offset)
            tokens[going, offset] = drawn.to(torch.int32)
            deeper = [n for n, i in enumerate(going) if depths[i] > offset + 1]
            if len(deeper) < len(going):
                going, drawn = [going[n] for n in deeper], drawn[deeper]
        return Draft(tokens, torch.tensor(depths, dtype=torch.int32, device=device))

    def _has_room(self, length: int) -> bool:
        """Whether the model has positions for a pending token at ``length`` and a proposal after it."""
        return length + 1 < self._forward.limit

    def _depth(self, row: Row, depth: int) -> int:
        """The depth asked for, as far as the model has positions for what it proposes."""
        if not self._covered[row.index] <= row.length < len(row.tokens):
            known = f"{self._covered[row.index]} tokens of {len(row.tokens)}, the target {row.length}"
            raise RowDraftError(row, f"the drafter covers {known}")
        return max(0, min(depth, self._forward.limit - 1 - row.length))

    def _advance(self, rows: Sequence[Row], ends: Sequence[int]) -> torch.Tensor:
        """Feed each row's text from its coverage up to ``ends``; hidden state of each row's last token [B, H]."""
        behind = sum(end - self._covered[row.index] for row, end in zip(rows, ends, strict=True))
        for row, end in zip(rows, ends, strict=True):
            while behind > CHUNK and (lag := end - self._covered[row.index]) > SMALL_LAG:
                fed = min(CHUNK, lag - 1)
                self._feed([row], [end - lag + fed])
                behind -= fed
        return self._feed(rows, ends)

    def _feed(self, rows: Sequence[Row], ends: Sequence[int]) -> torch.Tensor:
        if not rows:
            return torch.empty(0)
        starts = [self._covered[row.index] for row in rows]
        texts = [row.tokens[start:end] for row, start, end in zip(rows, starts, ends, strict=True)]
        hidden = self._forward.run(self._forward.batch(rows, texts, starts))
        self._covered.update((row.index, end) for row, end in zip(rows, ends, strict=True))
        last = [place - 1 for place in accumulate(len(text) for text in texts)]
        return hidden[last]

    def _own_blocks(self, row: Row) -> None:
        """Before filling in what a reused prefix lacks: the row must not write blocks that others read."""
        try:
            self._forward.tables.make_writable(row.index, self._covered[row.index], (GROUP,))
        except OutOfBlocks as error:
            raise RowDraftError(row, f"its prefix has no drafter state, and {error}") from error

    def _step(self, rows: Sequence[Row], drawn: torch.Tensor, offset: int) -> torch.Tensor:
        """Feed each row its newest proposal ``drawn`` [B], which stays on the device; hidden [B, H]."""
        contexts = [row.length + offset for row in rows]
        batch = self._forward.batch(rows, [[0]] * len(rows), contexts)
        hidden = self._forward.run(replace(batch, tokens=drawn))
        self._covered.update((row.index, context + 1) for row, context in zip(rows, contexts, strict=True))
        return hidden

    # -- coverage ----------------------------------------------------------------------------------------------------

    def _roll_back(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        for row, end in zip(rows, ends, strict=True):
            self._covered[row.index] = min(self._covered[row.index], end)
        self._publish(rows)

    def _publish(self, rows: Sequence[Row]) -> None:
        """Write the rows' coverage to its column."""
        column = self._forward.tables.draft_length
        index = torch.tensor([row.index for row in rows], dtype=torch.int64, device=column.device)
        column[index] = torch.tensor(
            [self._covered[row.index] for row in rows], dtype=torch.int64, device=column.device
        )
