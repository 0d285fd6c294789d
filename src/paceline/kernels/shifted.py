"""Attention of a shifted drafter: the queries of a row see its places from a first one on (spec 15.14). Torch form.

Knows slots and places, no model. Legend: B rows, C queries of a row, M table columns, D head size, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

QUERY_TILE = 128
"""Queries of a row that are computed together: bounds the memory of scores in long prompts."""


@dataclass(frozen=True)
class ShiftedReads:
    """``tables`` [B, M] int64 block ids; query (b, c) sees places ``first[b] .. last[b, c]`` (``first`` [B], ``last``
    [B, C] int64), itself at least. ``longest``: bound of all places, for the host. ``block_size`` in places."""

    tables: torch.Tensor
    block_size: int
    first: torch.Tensor
    last: torch.Tensor
    longest: int


def attend_shifted(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, reads: ShiftedReads, scale: float
) -> torch.Tensor:
    """[B, C, heads, D] over keys and values [S, kv_heads, D] -> [B, C, heads * D]."""
    parts = [
        _attend(queries[:, start : start + QUERY_TILE], keys, values, reads, (start, scale))
        for start in range(0, queries.shape[1], QUERY_TILE)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    reads: ShiftedReads,
    tile: tuple[int, float],
) -> torch.Tensor:
    start, scale = tile
    rows, columns, heads, dim = queries.shape
    last = reads.last[:, start : start + columns]
    blocks = min(-(-reads.longest // reads.block_size), reads.tables.shape[1])
    offsets = torch.arange(reads.block_size, device=queries.device)
    slots = (reads.tables[:, :blocks].unsqueeze(2) * reads.block_size + offsets).flatten(1)
    places = torch.arange(slots.shape[1], device=queries.device)
    first = torch.minimum(reads.first.unsqueeze(1), last).unsqueeze(2)
    seen = (places >= first) & (places <= last.unsqueeze(2))
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    kv_heads = keys.shape[1]
    grouped = queries.to(wide).view(rows, columns, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("bckgd,bskd->bckgs", grouped, keys[slots].to(wide)) * scale
    weights = torch.softmax(scores.masked_fill(~seen[:, :, None, None, :], -torch.inf), dim=-1)
    mixed = torch.einsum("bckgs,bskd->bckgd", weights, values[slots].to(wide))
    return mixed.reshape(rows, columns, heads * dim).to(queries.dtype)
