"""A kernel that only reads memory: the ceiling that everything bound by weights is measured against."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def read_kernel(source, out, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Reads STEPS * BLOCK elements per program and stores one number of them."""
    at = tl.program_id(0).to(tl.int64) * (STEPS * BLOCK) + tl.arange(0, BLOCK)
    highest = tl.zeros((BLOCK,), tl.int32)
    for _ in tl.static_range(STEPS):
        highest = tl.maximum(highest, tl.load(source + at, eviction_policy="evict_first"))
        at += BLOCK
    tl.store(out + tl.program_id(0), tl.max(highest, 0))


def read_all(source: torch.Tensor, out: torch.Tensor) -> None:
    """Read ``source`` (int32, a multiple of 32768 elements) once; ``out`` holds one int32 per 32768 of them."""
    read_kernel[(source.numel() // 32768,)](source, out, STEPS=8, BLOCK=4096, num_warps=8)
