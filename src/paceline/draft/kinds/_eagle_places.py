"""Where an EAGLE-3 drafter's pairs go and what they are made of, by tensor operations on any device.

A pair (token x_q, hidden h_(q-1)) has place q; the places before a row's first pair are not read (spec 15.14).
Legend: R rows of the tables, B rows, C columns, W window, T taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core.batch import ForwardBatch
from ...kernels.shifted import ShiftedReads
from ._eagle_layer import Eagle3Model, Pairs

if TYPE_CHECKING:
    from ...cache.tables import RowTables

GROUP = "eagle3"
"""Block group of the drafter's layer."""

TAP_RING = 64
"""Positions whose taps are kept per row."""


class TapRing:
    """The taps of the newest positions of every row: position p of row r at ``[r, p % TAP_RING]``."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        # one place more, for taps that nobody keeps
        self.memory = torch.zeros(rows, TAP_RING + 1, width, dtype=dtype, device=device)

    def put(self, index: torch.Tensor, starts: torch.Tensor, taps: torch.Tensor, counts: torch.Tensor) -> None:
        """Keep the first ``counts`` [B] of ``taps`` [B, W, T * target hidden], at positions from ``starts`` [B] on."""
        offsets = torch.arange(taps.shape[1], device=index.device)
        kept = offsets < counts.unsqueeze(1)
        # of more than the ring holds the last ones stay
        kept &= offsets >= (counts - TAP_RING).unsqueeze(1)
        places = torch.where(kept, (starts.unsqueeze(1) + offsets) % TAP_RING, TAP_RING)
        self.memory[index.unsqueeze(1), places] = taps.to(self.memory.dtype)

    def get(self, index: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Taps [B, C, T * target hidden] at ``positions`` [B, C]; negative positions give any."""
        return self.memory[index.unsqueeze(1), positions % TAP_RING]


@dataclass(frozen=True)
class Coverage:
    """Columns [R] of the drafter: ``covered`` places, of which the first that holds a pair is ``first``. Coverage may
    be one ahead of the target's length; ``RowTables.draft_length`` says what holds of both."""

    covered: torch.Tensor
    first: torch.Tensor

    @classmethod
    def of_nothing(cls, rows: int, device: torch.device) -> Coverage:
        return cls(*(torch.full((rows,), value, dtype=torch.int64, device=device) for value in (0, 1)))


@dataclass(frozen=True)
class Lag:
    """The newest C pairs of B rows: ``tokens`` [B * C] int64, ``taps`` [B * C, T * target hidden], where they go."""

    tokens: torch.Tensor
    taps: torch.Tensor
    pairs: Pairs


class Placer:
    """Makes the pairs of rows from the row tables' columns, the ring and the coverage."""

    def __init__(self, layer: Eagle3Model, tables: RowTables) -> None:
        shape = layer.shape
        self._tables = tables
        self.coverage = Coverage.of_nothing(tables.max_rows, tables.device)
        width = len(shape.taps) * shape.target_hidden
        self.ring = TapRing(tables.max_rows, width, layer.embedding.dtype, tables.device)

    def lag(self, index: torch.Tensor, columns: int, wanted: torch.Tensor, lengths: torch.Tensor) -> Lag:
        """The newest ``columns`` pairs of the rows ``index`` [B], up to that of the token at ``lengths`` [B]. Of the
        rows ``wanted`` [B] those that are missing are stored, and the newest; they count as covered from now on."""
        tables, coverage = self._tables, self.coverage
        places = lengths.unsqueeze(1) - torch.arange(columns - 1, -1, -1, device=index.device)
        missing = places >= torch.maximum(coverage.covered[index], coverage.first[index]).unsqueeze(1)
        # the newest pair always runs: its hidden state is what drafting starts from
        missing[:, -1] = True
        tokens = tables.history[index].gather(1, places.clamp(min=0)).to(torch.int64)
        pairs = self._pairs(index, places, missing & wanted.unsqueeze(1))
        coverage.covered[index] = torch.where(wanted, lengths + 1, coverage.covered[index])
        self.publish(index)
        return Lag(tokens.flatten(), self.ring.get(index, places - 1).flatten(0, 1), pairs)

    def step(self, index: torch.Tensor, offset: int, wanted: torch.Tensor, before: Pairs) -> Pairs:
        """The pairs [B, 1] of the proposals ``offset`` places behind the pending tokens. ``before``: of this chain."""
        return self._pairs(index, (self._tables.length[index] + 1 + offset).unsqueeze(1), wanted.unsqueeze(1))

    def chunk(self, batch: ForwardBatch, place: int, part: slice, first: int) -> Pairs:
        """The pairs of the tokens ``part`` (flat places) of a prompt chunk of the batch's row ``place``, whose first
        pair is at place ``first``."""
        index, places = batch.indices[place : place + 1], batch.positions[part].unsqueeze(0)
        table, longest = (
            batch.block_tables[GROUP][place : place + 1],
            batch.context_lens[place] + batch.query_lens[place],
        )
        reads = ShiftedReads(table, self._tables.block_size, self.coverage.first[index], places, longest)
        return Pairs(places, batch.slots[GROUP][part], reads)

    def keep(self, index: torch.Tensor, starts: torch.Tensor, taps: torch.Tensor, counts: torch.Tensor) -> None:
        """Put taps into the ring (:meth:`TapRing.put`) and publish the rows' coverage."""
        self.ring.put(index, starts, taps, counts)
        self.publish(index)

    def publish(self, index: torch.Tensor) -> None:
        """Write the rows' coverage to its column: never more than the target's."""
        tables = self._tables
        tables.draft_length[index] = torch.minimum(self.coverage.covered[index], tables.length[index])

    def _pairs(self, index: torch.Tensor, places: torch.Tensor, kept: torch.Tensor) -> Pairs:
        """Pairs at ``places`` [B, C], of which those ``kept`` [B, C] are stored."""
        tables = self._tables
        size = tables.block_size
        table = tables.block_table(GROUP).index_select(0, index)
        kept = kept & (places < tables.limit[index].unsqueeze(1))
        # the last column of a table is always scratch
        entries = torch.where(kept, places // size, table.shape[1] - 1)
        slots = table.gather(1, entries) * size + places % size
        last = places.clamp(min=0)
        on_host = index.device.type == "cpu"
        longest = int(last.max()) + 1 if on_host else tables.max_model_len
        reads = ShiftedReads(table, size, self.coverage.first[index], last, longest)
        return Pairs(places, slots.flatten(), reads)
