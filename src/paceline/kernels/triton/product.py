"""The matrix product kernel: weights stream once past up to BM rows, with norm scale, bias and epilogues fused.

One order of summation for every number of rows: the weights are the left operand and K runs upwards in one
accumulator, whatever the tile.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl

from .sums import inverse_rms

PLAIN, ADD, GATE = 0, 1, 2
"""Epilogues: none; add a residual; ``silu(gate) * up`` of outputs whose rows lie in turns of 8 gates and 8 ups."""


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x,
    weight,
    out,
    bias,
    residual,
    sums_in,
    sums_out,
    rows,
    outputs,
    x_stride,
    out_stride,
    residual_stride,
    eps,
    factor,
    K: tl.constexpr,
    NORM: tl.constexpr,
    LEVELS: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr,
    SUMS: tl.constexpr,
    EVEN: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
):
    """out [rows, outputs] = epilogue(factor * rms(x) [rows, K] @ weight [outputs, K]^T + bias).

    ``NORM``: 64-feature sums per row of ``sums_in`` (0: no norm). ``SUMS``: write the sums of squares of each 64
    stored outputs to ``sums_out`` [rows, SUMS]. ``EVEN``: tiles divide ``outputs`` and K.
    """
    tiles_m = tl.cdiv(rows, BM)
    tile_n = tl.program_id(0) // tiles_m
    tile_m = tl.program_id(0) % tiles_m
    n = tile_n * BN + tl.arange(0, BN)
    m = tile_m * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    held = m < rows
    if NORM:
        scale = inverse_rms(sums_in, m, held, K, eps, NORM, LEVELS)
    acc = tl.zeros((BN, BM), tl.float32)
    at_w = weight + n[:, None].to(tl.int64) * K + k[None, :]
    at_x = x + m[None, :].to(tl.int64) * x_stride + k[:, None]
    for first in range(0, K, BK):
        if EVEN:
            w = tl.load(at_w, eviction_policy="evict_first")
            b = tl.load(at_x, mask=held[None, :], other=0.0)
        else:
            w = tl.load(at_w, mask=(n < outputs)[:, None] & (first + k < K)[None, :], other=0.0)
            b = tl.load(at_x, mask=held[None, :] & (first + k < K)[:, None], other=0.0)
        acc = tl.dot(w, b, acc)
        at_w += BK
        at_x += BK
    if NORM:
        acc = acc * scale[None, :]
    if BIAS:
        acc += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    if EPILOGUE == 2:
        turns = tl.permute(tl.reshape(acc, (BN // 16, 2, 8, BM)), (0, 2, 3, 1))
        gate, up = tl.split(turns)
        acc = tl.reshape(gate / (1.0 + tl.exp(-gate)) * up, (BN // 2, BM))
        n = tile_n * (BN // 2) + tl.arange(0, BN // 2)
        outputs = outputs // 2
    kept = (n < outputs)[:, None] & held[None, :]
    if EPILOGUE == 1:
        at = residual + m[None, :].to(tl.int64) * residual_stride + n[:, None]
        acc = tl.load(at, mask=kept, other=0.0).to(tl.float32) + acc * factor
    stored = acc.to(out.dtype.element_ty)
    tl.store(out + m[None, :].to(tl.int64) * out_stride + n[:, None], stored, mask=kept)
    if SUMS:
        wide = stored.to(tl.float32)
        parts = tl.sum(tl.reshape(wide * wide, (BN // 64, 64, BM)), 1)
        part = tile_n * (BN // 64) + tl.arange(0, BN // 64)
        at = sums_out + m[None, :] * SUMS + part[:, None]
        tl.store(at, parts, mask=(part < SUMS)[:, None] & held[None, :])
