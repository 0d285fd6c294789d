"""Which proposals a device round verifies, and its forward laid out from the columns: one kernel on CUDA.

Nothing here reads a value of the device or has a size that depends on one.
Legend: B rows, K proposals at most, W = K + 1 window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..core.batch import ForwardBatch
from ..kernels.windows import Offer, WindowColumns, lay_windows

if TYPE_CHECKING:
    from ..cache.tables import RowTables


@dataclass(frozen=True)
class RoundWindows:
    """``proposals`` [B, K] int64, of which ``lengths`` [B] int64 are real, and the ``batch`` of all windows."""

    proposals: torch.Tensor
    lengths: torch.Tensor
    batch: ForwardBatch


def round_windows(tables: RowTables, offer: Offer) -> RoundWindows:
    """Each row's pending token and its proposals as one forward; padding repeats the pending token and writes to
    scratch, as do rows that are not live and positions at or past a row's limit."""
    if offer.index.device.type == "cuda":
        return _by_kernel(tables, offer)
    proposals, lengths = chosen(tables, offer)
    pending = tables.pending[offer.index].unsqueeze(1)
    offsets = torch.arange(offer.depth + 1, device=offer.index.device)
    tokens = torch.where(offsets <= lengths.unsqueeze(1), torch.cat([pending, proposals], dim=1), pending)
    return RoundWindows(proposals, lengths, tables.device_batch(offer.index, tokens, lengths + 1))


def _by_kernel(tables: RowTables, offer: Offer) -> RoundWindows:
    width, rows = offer.depth + 1, len(offer.index)
    blocks = {group.name: tables.block_table(group.name) for group in tables.groups}
    held = -(-(tables.max_model_len + width) // tables.block_size)
    found = lay_windows(window_columns(tables), blocks, offer, tables.block_size, held)
    batch = ForwardBatch(
        tokens=found.tokens,
        positions=found.positions,
        indices=offer.index,
        query_lens=[width] * rows,
        context_lens=[tables.max_model_len] * rows,
        slots=found.slots,
        block_tables=found.block_tables,
        width=width,
    )
    return RoundWindows(found.proposals, found.lengths, batch)


def window_columns(tables: RowTables) -> WindowColumns:
    return WindowColumns(tables.pending, tables.length, tables.limit, tables.remaining, tables.live)


def chosen(tables: RowTables, offer: Offer) -> tuple[torch.Tensor, torch.Tensor]:
    """Proposals [B, K] int64 and their lengths [B] int64 by tensor operations: given ones, else drafted ones."""
    rows, depth, device = len(offer.index), offer.depth, offer.index.device
    proposals = torch.zeros(rows, depth, dtype=torch.int64, device=device)
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    if offer.drafted is not None and offer.drafted_lengths is not None:
        drafted = offer.drafted.to(torch.int64)
        legal = ((drafted >= 0) & (drafted < offer.vocabulary)).long().cumprod(1).sum(1)
        proposals[:, : drafted.shape[1]] = drafted.clamp(0, offer.vocabulary - 1)
        most = torch.minimum(offer.depths, tables.remaining[offer.index])
        lengths = torch.minimum(torch.minimum(offer.drafted_lengths.to(torch.int64), most), legal).clamp(min=0)
    columns = offer.given.shape[1]
    if columns:
        told = offer.given_lengths > 0
        uploaded = torch.zeros_like(proposals)
        uploaded[:, :columns] = offer.given
        proposals = torch.where(told.unsqueeze(1), uploaded, proposals)
        lengths = torch.where(told, offer.given_lengths, lengths)
    return proposals, lengths
