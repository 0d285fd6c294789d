"""Prompt lookup over a history column: one program per row."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from ..draws import power_above
from ..lookup import LookupRule, Texts

_TILE = 1024


@triton.jit
def lookup_kernel(
    history,
    length,
    index,
    depths,
    eos_ids,
    tokens,
    lengths,
    columns,
    depth,
    WINDOW: tl.constexpr,
    LEAST: tl.constexpr,
    LATEST: tl.constexpr,
    EOS: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    """``tokens`` [B, depth] int32 and ``lengths`` [B] int32 of the rows ``index`` [B] of ``history`` [R, columns]."""
    row = tl.program_id(0)
    owner = tl.load(index + row)
    text = history + owner * columns
    count = (tl.load(length + owner) + 1).to(tl.int32)
    # the longest match wins; of equal ones the leftmost, or the latest
    best = tl.full((), -1, tl.int64)
    for first in range(0, count - 1, TILE):
        end = first + tl.arange(0, TILE)
        running = end < count - 1
        matched = tl.zeros((TILE,), tl.int32)
        for back in tl.static_range(WINDOW):
            newest = tl.load(text + tl.maximum(count - 1 - back, 0))
            running = running & (end >= back)
            before = tl.load(text + tl.maximum(end - back, 0), mask=running, other=0)
            running = running & (before == newest)
            matched += running.to(tl.int32)
        order = end if LATEST else 2147483647 - end
        worth = (matched.to(tl.int64) << 32) + order
        best = tl.maximum(best, tl.max(tl.where(matched >= LEAST, worth, -1)))
    order = (best & 0xFFFFFFFF).to(tl.int32)
    after = (order if LATEST else 2147483647 - order) + 1
    wanted = tl.minimum(tl.load(depths + row).to(tl.int32), depth)
    most = tl.where(best >= 0, tl.minimum(wanted, count - after), 0)
    place = tl.arange(0, PLACES)
    copied = tl.load(text + tl.where(best >= 0, after, 0) + place, mask=place < most, other=0)
    ends = place < 0
    for number in tl.static_range(EOS):
        ends = ends | (copied == tl.load(eos_ids + number))
    most = tl.minimum(most, tl.min(tl.where(ends & (place < most), place, PLACES)))
    most = tl.maximum(most, 0)
    tl.store(tokens + row * depth + place, tl.where(place < most, copied, 0), mask=place < depth)
    tl.store(lengths + row, most)


def look_up(
    texts: Texts, rule: LookupRule, index: torch.Tensor, depths: torch.Tensor, depth: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.lookup.look_up``."""
    rows, device = len(index), index.device
    tokens = torch.empty(rows, depth, dtype=torch.int32, device=device)
    lengths = torch.empty(rows, dtype=torch.int32, device=device)
    lookup_kernel[(rows,)](
        texts.history,
        texts.length,
        index,
        depths,
        _uploaded(rule.eos_ids, device),
        tokens,
        lengths,
        texts.history.shape[1],
        depth,
        WINDOW=rule.window_max,
        LEAST=rule.window_min,
        LATEST=rule.latest,
        EOS=len(rule.eos_ids),
        PLACES=power_above(depth),
        TILE=_TILE,
        num_warps=4,
    )
    return tokens, lengths


@lru_cache(maxsize=64)
def _uploaded(ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The ids on the device, uploaded once: a round may be captured only after one that ran."""
    return torch.tensor(ids or (-1,), dtype=torch.int32, device=device)
