"""Attention by torch's fused CPU kernel over key spans of fixed shape, joined by their log-sum-exp weights.

Knows tensors only: no block tables, no rows. One call handles the queries of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

_DTYPES = (torch.float32, torch.bfloat16)
_PROBED_SPAN = 256
_PROBED_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 15, 16, 20, 24, 32, 33, 36, 40, 48, 63, 64, 96, 128, 136, 196, 200, 384)


@dataclass(frozen=True)
class FlashTraits:
    """``multiple``: query rows (tokens x heads per KV head) of a call are padded to a multiple of it, because the
    kernel treats the last few rows of a tile differently. ``invariant``: a query row then gets the same bits in calls
    of any size that was tried, views or gathered copies alike."""

    multiple: int
    invariant: bool


def traits(keys: torch.Tensor, values: torch.Tensor, heads: int, dtype: torch.dtype) -> FlashTraits | None:
    """What the kernel does for these shapes, or ``None`` if it cannot serve them."""
    usable = (
        keys.device.type == "cpu"
        and dtype in _DTYPES
        and keys.dtype == dtype
        and keys.shape[2] == values.shape[2]
        and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    )
    return _probe(keys.shape[1], keys.shape[2], dtype, torch.get_num_threads()) if usable else None


def attend_spans(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [T, heads, D] over keys and values [spans, kv_heads, S, D] -> [T, heads * D].

    ``mask`` [spans, 1, rows, S] is added to the scores; it has at least T x (heads / kv_heads) rows.
    """
    tokens, heads, dim = q.shape
    spans, kv_heads, _, _ = keys.shape
    shared = heads // kv_heads
    folded = q.view(tokens, kv_heads, shared, dim)
    folded = folded.transpose(0, 1).reshape(1, kv_heads, tokens * shared, dim)
    missing = mask.shape[2] - folded.shape[2]
    if missing:
        folded = F.pad(folded, (0, 0, 0, missing))
    out, log_sums = _fused(folded.expand(spans, -1, -1, -1), keys, values, mask, scale)
    joined = out[0] if spans == 1 else _join(out, log_sums)
    if missing:
        joined = joined[:, : tokens * shared]
    return joined.view(kv_heads, tokens, shared, dim).transpose(0, 1).reshape(tokens, heads * dim)


def _fused(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's kernel: output [spans, h, M, D] and log-sum-exp [spans, h, M] in float32."""
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
    return out, log_sums


def _join(out: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
    """[spans, h, M, D] and log-sum-exp [spans, h, M] -> [h, M, D].

    Spans are added strictly in their order, one operation at a time, so that neither their number nor the place of a
    query in the call changes a bit; a hidden span has weight zero and adds exactly nothing.
    """
    weights = (log_sums - log_sums.amax(0)).exp_()
    weighted = out * weights.unsqueeze(-1)
    total, weight = weighted[0], weights[0]
    for span in range(1, out.shape[0]):
        total.add_(weighted[span])
        weight.add_(weights[span])
    return total.div_(weight.unsqueeze(-1)).to(out.dtype)


@lru_cache(maxsize=64)
def _probe(kv_heads: int, dim: int, dtype: torch.dtype, threads: int) -> FlashTraits:
    """Compare rows over call sizes and places in the call, over hidden spans appended, over placements in memory."""
    sample = _Sample(kv_heads, dim, dtype)
    reference = sample.run(0, _PROBED_ROWS[-1], 3, 0)
    equal: dict[int, bool] = {}
    for count in _PROBED_ROWS:
        starts = range(0, min(_PROBED_ROWS[-1] - count, 24 * count) + 1, count)
        equal[count] = all(sample.same(reference, start, count) for start in starts)
    for multiple in (1, 2, 4, 8):
        if all(same for count, same in equal.items() if count % multiple == 0):
            return FlashTraits(multiple, True)
    return FlashTraits(1, False)


class _Sample:
    """Queries that see two spans of keys, or the first only (the early half); a third span is hidden from all."""

    def __init__(self, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(73)
        rows, spans = _PROBED_ROWS[-1], 3
        self.scale = dim**-0.5
        self.q = torch.randn(1, kv_heads, rows, dim, generator=generator).to(dtype)
        shape = (2, spans * _PROBED_SPAN, kv_heads, dim)
        self.store = torch.randn(shape, generator=generator).to(dtype)
        seen = torch.rand(spans, 1, rows, _PROBED_SPAN, generator=generator) < 0.8
        seen[1, :, : rows // 2], seen[2] = False, False
        self.mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(seen.logical_not(), -1e30)

    def run(self, start: int, count: int, spans: int, offset: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Joined output, the first span's output, and its log-sum-exp, of queries ``start .. start + count``."""
        used = self.store[:, : spans * _PROBED_SPAN]
        if offset:  # the same values, elsewhere in memory
            used = torch.cat((used[:, :offset], used), 1)[:, offset:]
        kv = used.view(2, spans, _PROBED_SPAN, *used.shape[2:]).transpose(2, 3)
        rows = slice(start, start + count)
        q = self.q[:, :, rows].contiguous().expand(spans, -1, -1, -1)
        out, log_sums = _fused(q, kv[0], kv[1], self.mask[:spans, :, rows].contiguous(), self.scale)
        return _join(out, log_sums), out[0], log_sums[0]

    def same(self, reference: tuple[torch.Tensor, ...], start: int, count: int) -> bool:
        """Whether the queries have their reference bits with fewer spans, shifted in memory."""
        rows = slice(start, start + count)
        seen = 1 if start + count <= _PROBED_ROWS[-1] // 2 else 2
        got = self.run(start, count, seen, start % 5)
        return all(torch.equal(mine, whole[:, rows]) for mine, whole in zip(got, reference, strict=True))
