"""Device helpers shared by the kernels: sums of fixed order, and the norm factor made of them."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tree_sum(x, LEVELS: tl.constexpr):
    """[R, 2**LEVELS] -> [R], adding neighbours level by level: the order is the same whatever layout x has."""
    for _ in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
        x = left + right
    return tl.reshape(x, (x.shape[0],))


@triton.jit
def inverse_rms(sums, rows, valid, width, eps, TILES: tl.constexpr, LEVELS: tl.constexpr):
    """1 / rms of rows [R] from their sums of squares per 64 features: ``sums`` [.., TILES] float32."""
    tile = tl.arange(0, 1 << LEVELS)
    held = valid[:, None] & (tile < TILES)[None, :]
    parts = tl.load(sums + rows[:, None] * TILES + tile[None, :], mask=held, other=0.0)
    return tl.rsqrt(tree_sum(parts, LEVELS) / width + eps)
