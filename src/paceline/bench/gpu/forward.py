"""One verify forward on the device as a graph: how long it takes by rows and window width, and whether a row's logits
depend on either. It uses the row tables as rounds do, and no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from ...cache.groups import blocks_spanning
from ...cache.pool import BlockPool
from ...cache.store import KVStore
from ...cache.tables import RowTables
from ...core.errors import PacelineError
from ...engine.device_windows import round_windows
from ...kernels.windows import Offer
from ...models.binding import TargetBinding
from .rig import BLOCK_SIZE, Rig, detach
from .timing import captured, interleaved_ms

CONTEXT = 512
FLAT_LIMITS = ((32, 1.05), (64, 1.10), (128, 1.20), (256, 1.40))
"""Flat rows (B * T) up to which the time may be so many times that of T = 1 at the same B."""
_WIDTHS = {1: (1, 2, 4, 5, 8, 16, 32), 2: (1, 5, 16), 4: (1, 4, 5, 8), 8: (1, 4, 5, 8), 16: (1, 4, 5, 8, 16)}
_WIDE = {32: (1, 2, 4, 5, 8), 64: (1, 2, 4, 5)}


@dataclass(frozen=True)
class ForwardCell:
    """``rows`` rows of ``width`` tokens behind ``context`` positions. ``over_one``: times the width-1 forward of the
    same rows. ``same``: the first row's logits at its first position are bit for bit those of the narrowest batch."""

    rows: int
    width: int
    context: int
    ms: float
    floor_ms: float
    over_one: float
    same: bool

    @property
    def limit(self) -> float | None:
        """What ``over_one`` may be at most (target P3)."""
        return next((most for flat, most in FLAT_LIMITS if self.rows * self.width <= flat), None)


class ForwardStand:
    """Row tables with ``rows`` rows of ``context`` positions whose keys and values are noise."""

    def __init__(self, target: TargetBinding, rows: int, context: int, room: int) -> None:
        self.target = target
        length = context + room
        blocks = 1 + rows * (blocks_spanning(length, BLOCK_SIZE) + 1)
        counts = {group.name: blocks for group in target.kv_groups}
        store = KVStore(target.kv_groups, counts, BLOCK_SIZE, target.kv_dtype, target.device)
        generator = torch.Generator(target.device).manual_seed(3)
        for group in target.kv_groups:
            for memory in store.tensors(group.name):
                memory.normal_(generator=generator).mul_(0.5)
        target.attach(store)
        pools = {name: BlockPool(count, BLOCK_SIZE) for name, count in counts.items()}
        most = min(target.max_model_len, length)
        self.tables = RowTables(rows, most, target.kv_groups, pools, store, target.device)
        self.index = torch.tensor([self._open(context, most) for _ in range(rows)], device=target.device)

    def _open(self, context: int, most: int) -> int:
        index = self.tables.acquire_index()
        if index is None:
            raise PacelineError("the row tables are full")
        self.tables.reserve(index, most)
        self.tables.length[index] = context
        self.tables.limit[index] = most
        self.tables.pending[index] = (index * 131 + 11) % self.target.vocab_size
        self.tables.live[index] = True
        return index

    def close(self) -> None:
        """Free the store."""
        detach(self.target)

    def logits(self, rows: int, width: int) -> torch.Tensor:
        """[rows * width, V] of windows that hold the same ids for the same row and place whatever the batch."""
        index, vocabulary = self.index[:rows], self.target.vocab_size
        places = torch.arange(1, width, device=index.device)
        proposals = (index.unsqueeze(1) * 131 + places * 7919 + 11) % vocabulary
        lengths = torch.full_like(index, width - 1)
        offer = Offer(index, width - 1, vocabulary, lengths, proposals, lengths)
        return self.target.logits(self.target.forward(round_windows(self.tables, offer).batch).hidden)


def measure_forwards(rig: Rig, batches: Sequence[int]) -> dict[str, Any]:
    """Cells over ``batches`` and widths, behind :data:`CONTEXT` positions (fewer if the model has not so many)."""
    widths = {rows: (_WIDTHS | _WIDE).get(rows, (1, 5)) for rows in batches}
    room = max(max(each) for each in widths.values())
    context = min(CONTEXT, rig.target.max_model_len - room)
    stand = ForwardStand(rig.target, max(batches), context, room)
    reference: torch.Tensor | None = None
    cells: list[ForwardCell] = []
    for rows, each in widths.items():
        calls = [captured(partial(stand.logits, rows, width), rig.settings.device) for width in each]
        first = [_first_row(call) for call in calls]
        reference = first[0] if reference is None else reference
        times = interleaved_ms(calls, rig.settings.device)
        for width, ms, row in zip(each, times, first, strict=True):
            floor = rig.floor_ms(rows, context)
            cells.append(ForwardCell(rows, width, context, ms, floor, ms / times[0], bool(torch.equal(row, reference))))
        del calls
    stand.close()
    return {"context": context, "cells": [asdict(cell) | {"limit": cell.limit} for cell in cells]}


def _first_row(call: Any) -> torch.Tensor:
    """Logits [V] of the first row at its first position."""
    logits: torch.Tensor = call()
    return logits[0].clone()
