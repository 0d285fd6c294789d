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
    """``multiple``: query rows (tokens x heads per KV head) of a call are padded to a multiple of it, because the kernel
    treats the last few rows of a tile differently. ``invariant``: a query row then gets the same bits in calls of any
    size that was tried, views or gathered copies alike."""

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
    out, weights = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded.expand(spans, -1, -1, -1), keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
    joined = out[0] if spans == 1 else _join(out, weights)
    if missing:
        joined = joined[:, : tokens * shared]
    return joined.view(kv_heads, tokens, shared, dim).transpose(0, 1).reshape(tokens, heads * dim)


def _join(out: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
    """[spans, h, M, D] and log-sum-exp [spans, h, M] -> [h, M, D].

    Spans are added in their order; a hidden span has weight zero and adds exactly nothing.
    """
    weights = torch.softmax(log_sums, 0).unsqueeze(-1)
    return (out * weights).sum(0).to(out.dtype)


@lru_cache(maxsize=64)
def _probe(kv_heads: int, dim: int, dtype: torch.dtype, threads: int) -> FlashTraits:
    """Compare rows over call sizes, over hidden spans appended, and over placements in memory."""
    generator = torch.Generator().manual_seed(73)
    rows, spans = _PROBED_ROWS[-1], 3

    def sample(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q = sample(rows, kv_heads, dim)
    store = [sample(spans * _PROBED_SPAN + 5, kv_heads, dim) for _ in range(2)]
    seen = torch.rand(spans, 1, rows, _PROBED_SPAN, generator=generator) < 0.8
    seen[1, :, : rows // 2], seen[2, :, :] = False, False
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(seen.logical_not(), -1e30)

    def run(count: int, used: int, offset: int) -> torch.Tensor:
        length = used * _PROBED_SPAN
        parts = []
        for tensor in store:
            kept = tensor[: spans * _PROBED_SPAN]
            moved = torch.cat((tensor[:offset], kept))[offset:]
            parts.append(moved[:length].view(used, _PROBED_SPAN, kv_heads, dim).transpose(1, 2))
        return attend_spans(q[:count], parts[0], parts[1], mask[:used, :, :count], dim**-0.5)

    reference = run(rows, 3, 0)
    half = rows // 2
    equal = {count: torch.equal(run(count, 2, count % 4), reference[:count]) for count in _PROBED_ROWS}
    for count in (n for n in _PROBED_ROWS if n <= half):
        equal[count] = equal[count] and torch.equal(run(count, 1, 0), reference[:count])
    for multiple in (1, 2, 4, 8):
        if all(same for count, same in equal.items() if count % multiple == 0):
            return FlashTraits(multiple, True)
    return FlashTraits(1, False)
