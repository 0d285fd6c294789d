"""Lays out one forward over paged KV: flat tokens, positions, slots and block tables, with few small operations.

Runs every round, so it works on host arrays and uploads once. It knows tables, not models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ..core.batch import ForwardBatch
from ..core.errors import IntegrityError
from .uploads import sent

if TYPE_CHECKING:
    from .block_table import BlockTable

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """What a forward is asked to run, one entry per row; the fields are those of ``RowTables.forward_batch``."""

    indices: Sequence[int]
    tokens: Sequence[Sequence[int]]
    contexts: Sequence[int]
    limits: Sequence[int]
    live: Sequence[bool] | None

    def write_ends(self, lens: Sequence[int]) -> list[int]:
        """Per row the first position that is not kept; a row that keeps nothing has its context there."""
        ends = [
            max(context, min(context + length, limit))
            for context, length, limit in zip(self.contexts, lens, self.limits, strict=True)
        ]
        if self.live is None:
            return ends
        return [end if up else context for end, context, up in zip(ends, self.contexts, self.live, strict=True)]


def build_forward_batch(
    tables: Mapping[str, BlockTable], layout: Layout, block_size: int, device: torch.device
) -> ForwardBatch:
    """Lay the rows' tokens flat and find the slot of each in every group."""
    lens = [len(row) for row in layout.tokens]
    rows, total = len(lens), sum(lens)
    if not rows:
        raise IntegrityError("a forward was asked for without any row")
    ends = layout.write_ends(lens)
    for table in tables.values():
        _check_writable(table, layout, ends, block_size)
    packed = np.empty((2 + len(tables)) * total + rows, dtype=np.int64)
    packed[:total] = list(chain.from_iterable(layout.tokens))
    packed[-rows:] = layout.indices
    positions = packed[total : 2 * total]
    width = next(iter(tables.values())).host.shape[1]
    entries, offsets = _entries(positions, layout, lens, ends, (block_size, width))
    for number, table in enumerate(tables.values(), 2):
        slots = packed[number * total : (number + 1) * total]
        table.flat.take(entries, out=slots, mode="clip")  # "raise" would buffer
        slots *= block_size
        slots += offsets
    flat = sent(torch.from_numpy(packed), device)
    parts = torch.split(flat, [total] * (2 + len(tables)) + [rows])
    longest = max(context + length for context, length in zip(layout.contexts, lens, strict=True))
    depth = -(-longest // block_size)
    return ForwardBatch(
        tokens=parts[0],
        positions=parts[1],
        indices=parts[-1],
        query_lens=lens,
        context_lens=list(layout.contexts),
        slots=dict(zip(tables, parts[2:-1], strict=True)),
        block_tables={name: _rows_of(table, parts[-1], depth) for name, table in tables.items()},
    )


def _check_writable(table: BlockTable, layout: Layout, ends: Sequence[int], block_size: int) -> None:
    for index, context, end in zip(layout.indices, layout.contexts, ends, strict=True):
        if end <= context:
            continue
        if end > len(table.blocks[index]) * block_size:
            raise IntegrityError(f"row {index} writes up to {end} but has fewer {table.spec.name} blocks reserved")
        if context < table.writable_from(index) * block_size:
            raise IntegrityError(f"row {index} writes at {context} into a shared or freed {table.spec.name} block")


def _entries(
    positions: _Ints, layout: Layout, lens: Sequence[int], ends: Sequence[int], shape: tuple[int, int]
) -> tuple[_Ints, _Ints]:
    """Fill ``positions`` [N]; return per token the flat entry in a table of width ``shape[1]`` and the offset in the
    block. Tokens that are not kept get the row's last entry, which is always scratch."""
    block_size, width = shape
    if len(lens) == 1:
        context, end, index = layout.contexts[0], ends[0], layout.indices[0]
        positions[:] = np.arange(context, context + lens[0])
        columns, offsets = np.divmod(positions, block_size)
        columns[max(0, end - context) :] = width - 1
        columns += index * width
        return columns, offsets
    per_row = np.array([layout.contexts, ends, layout.indices], dtype=np.int64)
    per_row[0, 1:] -= np.cumsum(lens)[:-1]
    per_row[2] *= width
    per_token = per_row.repeat(lens, axis=1)
    np.add(per_token[0], np.arange(positions.shape[0]), out=positions)
    columns, offsets = np.divmod(positions, block_size)
    columns = np.where(positions < per_token[1], columns, width - 1)
    columns += per_token[2]
    return columns, offsets


def _rows_of(table: BlockTable, indices: torch.Tensor, depth: int) -> torch.Tensor:
    """Tables of the rows [B, depth], a copy: the batch must not change when a table does."""
    whole = table.device()
    picked = whole[:, :depth].index_select(0, indices)
    if depth <= whole.shape[1]:
        return picked
    return torch.nn.functional.pad(picked, (0, depth - whole.shape[1]))
