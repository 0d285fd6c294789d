"""Launches of the window kernel: one per block group. Knows columns and tables as tensors, no row record.

Legend: B rows of a round, R rows of the tables, K proposals at most, W = K + 1 window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .draws import power_above

_SPAN = 1024


@dataclass(frozen=True)
class WindowColumns:
    """The columns [R] that windows are made from."""

    pending: torch.Tensor
    length: torch.Tensor
    limit: torch.Tensor
    remaining: torch.Tensor
    live: torch.Tensor


@dataclass(frozen=True)
class Offer:
    """What the rows ``index`` [B] int64 may propose. ``drafted`` [B, D] with ``drafted_lengths`` [B], of which at most
    ``depths`` [B] int64 are used, and only ids below ``vocabulary``; ``given`` [B, G] int64 with ``given_lengths`` [B]
    int64 go before them where a length is > 0. ``depth``: K, at least D and G."""

    index: torch.Tensor
    depth: int
    vocabulary: int
    depths: torch.Tensor
    given: torch.Tensor
    given_lengths: torch.Tensor
    drafted: torch.Tensor | None = None
    drafted_lengths: torch.Tensor | None = None


@dataclass(frozen=True)
class Windows:
    """``proposals`` [B, K], ``lengths`` [B]; flat windows ``tokens`` and ``positions`` [B * W], padding included; per
    block group ``slots`` [B * W] and ``block_tables`` [B, M]. All int64."""

    proposals: torch.Tensor
    lengths: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: Mapping[str, torch.Tensor]
    block_tables: Mapping[str, torch.Tensor]


def lay_windows(
    columns: WindowColumns, tables: Mapping[str, torch.Tensor], offer: Offer, block_size: int, held: int
) -> Windows:
    """Choose each row's proposals and lay its window out. ``tables``: group -> [R, C] int64, last column scratch.

    ``held``: M, columns of the block tables that are passed on. No value of the device is read.
    """
    rows, depth, device = len(offer.index), offer.depth, offer.index.device

    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device)

    flat = rows * (depth + 1)
    found = Windows(
        proposals=new(rows, depth),
        lengths=new(rows),
        tokens=new(flat),
        positions=new(flat),
        slots={name: new(flat) for name in tables},
        block_tables={name: new(rows, held) for name in tables},
    )
    for number, (name, table) in enumerate(tables.items()):
        _launch(columns, table, offer, found, name, (block_size, number == 0))
    return found


def _launch(
    columns: WindowColumns, table: torch.Tensor, offer: Offer, found: Windows, name: str, how: tuple[int, bool]
) -> None:
    from .triton.windows import window_kernel

    block_size, first = how
    index, drafted, lengths = offer.index, offer.drafted, offer.drafted_lengths
    rows, held = found.block_tables[name].shape
    window_kernel[(rows, -(-held // _SPAN))](
        index,
        columns.pending,
        columns.length,
        columns.limit,
        columns.remaining,
        columns.live.view(torch.int8),
        index if drafted is None else drafted.contiguous(),
        index if lengths is None else lengths,
        offer.depths,
        offer.given.contiguous() if offer.given.shape[1] else index,
        offer.given_lengths,
        table,
        found.proposals,
        found.lengths,
        found.tokens,
        found.positions,
        found.slots[name],
        found.block_tables[name],
        table.shape[1],
        held,
        offer.depth,
        offer.vocabulary,
        DRAFTS=0 if drafted is None else drafted.shape[1],
        GIVEN=offer.given.shape[1],
        FIRST=first,
        BLOCK=block_size,
        PLACES=power_above(offer.depth + 1),
        SPAN=_SPAN,
        num_warps=4,
    )
