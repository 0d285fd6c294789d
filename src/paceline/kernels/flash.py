"""Attention by torch's fused CPU kernel over key spans of fixed shape, joined by their log-sum-exp weights.

Knows tensors only: no block tables, no rows. One call handles the queries of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    q: torch.Tensor, spans: Sequence[tuple[torch.Tensor, torch.Tensor]], mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [n * T, heads, D], n segments of T tokens -> [n * T, heads * D]; one kernel call per segment.

    ``spans``: each segment's keys and values [spans, kv_heads, S, D]. ``mask`` [n, spans, 1, M, S] is added to the
    scores; its rows M are T x (heads / kv_heads), padded.
    """
    count, kv_heads = spans[0][0].shape[:2]
    folded = _fold(q, len(spans), kv_heads, mask.shape[3])
    parts = [
        _fused(folded[i : i + 1].expand(count, -1, -1, -1), keys, values, mask[i], scale)
        for i, (keys, values) in enumerate(spans)
    ]
    return _unfold(_join_segments(parts), q)


def attend_together(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """As :func:`attend_spans` in one kernel call; keys and values [n, spans, kv_heads, S, D]."""
    segments, spans, kv_heads = keys.shape[:3]
    folded = _fold(q, segments, kv_heads, mask.shape[3])
    repeated = folded.unsqueeze(1).expand(-1, spans, -1, -1, -1)
    calls = [part.flatten(0, 1) for part in (repeated, keys, values, mask)]
    out, log_sums = _fused(calls[0], calls[1], calls[2], calls[3], scale)
    if spans == 1:
        return _unfold(out, q)
    shape = (segments, spans)
    return _unfold(_join(out.view(*shape, *out.shape[1:]), log_sums.view(*shape, *log_sums.shape[1:]), 1), q)


def _fold(q: torch.Tensor, segments: int, kv_heads: int, rows: int) -> torch.Tensor:
    """[n * T, heads, D] -> [n, kv_heads, rows, D]: a KV head's query heads as extra rows, padded to ``rows``."""
    _, heads, dim = q.shape
    folded = q.reshape(segments, -1, kv_heads, heads // kv_heads, dim).transpose(1, 2).flatten(2, 3)
    missing = rows - folded.shape[2]
    return F.pad(folded, (0, 0, 0, missing)) if missing else folded


def _unfold(joined: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """[n, kv_heads, rows, D] -> [n * T, heads * D], T and heads as in ``q``."""
    segments, kv_heads, rows, dim = joined.shape
    total, heads, _ = q.shape
    tokens, shared = total // segments, heads // kv_heads
    if rows != tokens * shared:
        joined = joined[:, :, : tokens * shared]
    return joined.reshape(segments, kv_heads, tokens, shared, dim).transpose(1, 2).reshape(total, heads * dim)


def _join_segments(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Outputs and log-sums of each segment over its spans -> [n, h, M, D]."""
    if parts[0][0].shape[0] == 1:
        return parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts])
    if len(parts) == 1:
        return _join(*parts[0]).unsqueeze(0)
    return _join(torch.stack([part[0] for part in parts], 1), torch.stack([part[1] for part in parts], 1))


def _fused(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's kernel: output [spans, h, M, D] and log-sum-exp [spans, h, M] in float32."""
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
    return out, log_sums


def _join(out: torch.Tensor, log_sums: torch.Tensor, axis: int = 0) -> torch.Tensor:
    """[..., M, D] and log-sum-exp [..., M] with the spans on ``axis`` -> the same without that axis.

    Spans are added strictly in their order, one operation at a time, so that neither their number nor the place of a
    query in the call changes a bit; a hidden span has weight zero and adds exactly nothing.
    """
    weights = (log_sums - log_sums.amax(axis, keepdim=True)).exp_()
    weighted = (out * weights.unsqueeze(-1)).unbind(axis)
    shares = weights.unbind(axis)
    total, weight = weighted[0], shares[0]
    for more, share in zip(weighted[1:], shares[1:], strict=True):
        total = total + more
        weight = weight + share
    return (total / weight.unsqueeze(-1)).to(out.dtype)


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
