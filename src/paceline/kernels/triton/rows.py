"""Kernels over whole rows: embedding lookup with the sums its norm needs, and the final norm."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .sums import inverse_rms, tree_sum


@triton.jit
def embed_kernel(
    tokens, table, out, sums, out_stride, factor, WIDTH: tl.constexpr, TILES: tl.constexpr, CHAIN: tl.constexpr
):
    """out [rows, WIDTH] = factor * table[tokens], and the sums of squares of each 64 features.

    ``CHAIN``: the next launch may start at once and wait for this one.
    """
    if CHAIN:
        gdc_launch_dependents()
    row = tl.program_id(0)
    part = tl.program_id(1) * 8 + tl.arange(0, 8)
    feature = part[:, None] * 64 + tl.arange(0, 64)[None, :]
    kept = feature < WIDTH
    token = tl.load(tokens + row)
    value = tl.load(table + token * WIDTH + feature, mask=kept, other=0.0)
    stored = (value.to(tl.float32) * factor).to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * out_stride + feature, stored, mask=kept)
    wide = stored.to(tl.float32)
    tl.store(sums + row * TILES + part, tree_sum(wide * wide, 6), mask=part < TILES)


@triton.jit
def norm_kernel(
    x,
    sums,
    weight,
    out,
    x_stride,
    eps,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
    LEVELS: tl.constexpr,
    B: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """out [rows, WIDTH] = x / rms(x) * weight. ``CHAIN``: as in ``split_kernel``."""
    if CHAIN:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    only = row + tl.arange(0, 1)
    scale = inverse_rms(sums, only, only >= 0, WIDTH, eps, TILES, LEVELS)
    feature = tl.program_id(1) * B + tl.arange(0, B)
    kept = feature < WIDTH
    value = tl.load(x + row.to(tl.int64) * x_stride + feature, mask=kept, other=0.0).to(tl.float32)
    normed = value * scale * tl.load(weight + feature, mask=kept, other=0.0)
    tl.store(out + row.to(tl.int64) * WIDTH + feature, normed.to(out.dtype.element_ty), mask=kept)
