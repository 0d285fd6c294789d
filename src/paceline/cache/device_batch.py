"""Lays out one forward from the device's own columns: the host may not yet know how long the rows are.

Every size depends on the number of rows and the window width alone, so that the operations can be captured in a graph.
It knows columns and tables, not models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ..core.batch import ForwardBatch

if TYPE_CHECKING:
    from .block_table import BlockTable
    from .columns import RowColumns


@dataclass(frozen=True)
class DeviceLayout:
    """Rows ``index`` [B] int64, their windows ``tokens`` [B, W] int64, and how many of them ``counts`` [B] are real."""

    index: torch.Tensor
    tokens: torch.Tensor
    counts: torch.Tensor


def build_device_batch(
    columns: RowColumns, tables: Mapping[str, BlockTable], layout: DeviceLayout, longest: int | None
) -> ForwardBatch:
    """The flat batch of all windows, padding included. ``longest``: see :meth:`RowTables.device_batch`."""
    index, (rows, width) = layout.index, layout.tokens.shape
    first = next(iter(tables.values()))
    block_size = first.pool.block_size
    contexts, bound = _contexts(columns, index, width, longest)
    offsets = torch.arange(width, device=index.device)
    positions = columns.length[index].unsqueeze(1) + offsets
    real = (offsets < layout.counts.unsqueeze(1)) & columns.live[index].unsqueeze(1)
    kept = real & (positions < columns.limit[index].unsqueeze(1))
    # the last column of a table is always scratch
    entries = torch.where(kept, positions // block_size, first.host.shape[1] - 1)
    inside = positions % block_size
    depth = -(-bound // block_size)
    slots, block_tables = {}, {}
    for name, table in tables.items():
        whole = table.device().index_select(0, index)
        slots[name] = (whole.gather(1, entries) * block_size + inside).flatten()
        missing = depth - whole.shape[1]
        block_tables[name] = F.pad(whole, (0, missing)) if missing > 0 else whole[:, :depth].contiguous()
    return ForwardBatch(
        tokens=layout.tokens.flatten(),
        positions=positions.flatten(),
        indices=index,
        query_lens=[width] * rows,
        context_lens=contexts,
        slots=slots,
        block_tables=block_tables,
        width=width,
    )


def _contexts(columns: RowColumns, index: torch.Tensor, width: int, longest: int | None) -> tuple[Sequence[int], int]:
    """Per row what the host may take for its context, and a bound of all positions."""
    if index.device.type == "cpu":
        exact: list[int] = columns.length[index].tolist()
        return exact, max(exact) + width
    bound = columns.max_model_len + width if longest is None else longest
    return [bound - width] * len(index), bound
