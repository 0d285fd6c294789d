"""A kernel that reads memory and writes next to nothing: what the memory of a device can deliver at best."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sum_kernel(source, sums, PASSES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    stride = tl.num_programs(0) * BLOCK
    place = source + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for _ in range(PASSES):
        total += tl.load(place, eviction_policy="evict_first")
        place += stride
    tl.store(sums + tl.program_id(0), tl.sum(total))


def stream_sum(source: torch.Tensor, sums: torch.Tensor, block: int, warps: int) -> int:
    """Add up ``source`` [count] int32 in whole passes of ``programs * block``: one partial sum per program goes to
    ``sums`` [programs] int32 (wrapping). Returns how many numbers were read."""
    programs = sums.shape[0]
    passes = source.shape[0] // (programs * block)
    _sum_kernel[(programs,)](source, sums, PASSES=passes, BLOCK=block, num_warps=warps)
    return passes * programs * block
