"""Rotary positions with the q/k norm, on loading: the helper attention uses, and a kernel for long prompts that also
writes keys and values to their slots."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def head_rms(sums, token, column, valid, eps, TILES: tl.constexpr, D: tl.constexpr):
    """1 / rms of one head per entry: ``token`` [R] rows of ``sums`` [.., TILES], ``column`` [R] its first feature."""
    at = sums + token * TILES + column // 64
    total = tl.load(at, mask=valid, other=1.0)
    for part in tl.static_range(1, D // 64):
        total += tl.load(at + part, mask=valid, other=0.0)
    return tl.rsqrt(total / D + eps)


@triton.jit
def rotated_head(
    qkv,
    sums,
    weights,
    which,
    table,
    token,
    column,
    position,
    valid,
    eps,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
):
    """One normed and rotated head per entry: float32 [R, D].

    ``qkv`` [.., WIDTH]; ``token``, ``column``, ``position`` [R]. ``weights`` [2, D]: the norm of queries, then that of
    keys; ``which`` of them. ``table`` [positions, D]: D/2 cosines, then D/2 sines. ``TILES``: 64-feature sums per row,
    0 for families without q/k norm. ``ROPE``: positions in the table, 0 for none.
    """
    d = tl.arange(0, D)
    other = (d + D // 2) % D
    base = qkv + token[:, None].to(tl.int64) * WIDTH + column[:, None]
    own = tl.load(base + d[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
    if TILES:
        scale = head_rms(sums, token, column, valid, eps, TILES, D)[:, None]
        own = own * scale * tl.load(weights + which * D + d)[None, :]
    if ROPE:
        twin = tl.load(base + other[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
        if TILES:
            twin = twin * scale * tl.load(weights + which * D + other)[None, :]
        angles = table + tl.minimum(position, ROPE - 1)[:, None] * D + (d % (D // 2))[None, :]
        cos = tl.load(angles, mask=valid[:, None], other=0.0)
        sin = tl.load(angles + D // 2, mask=valid[:, None], other=0.0)
        own = own * cos + tl.where(d < D // 2, -1.0, 1.0)[None, :] * twin * sin
    return own


@triton.jit
def finite(x):
    """x with zeros for what is not finite: such values would spoil whoever reads their block as hidden keys later."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit(do_not_specialize=["rows"])
def rotate_kernel(
    qkv,
    sums,
    weights,
    table,
    positions,
    slots,
    q_out,
    keys,
    values,
    rows,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
):
    """Queries to ``q_out`` [rows, HEADS * D], keys and values to their slots [S, KV_HEADS, D]."""
    head = tl.program_id(1)
    token = tl.program_id(0) * R + tl.arange(0, R)
    valid = token < rows
    d = tl.arange(0, D)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    column = tl.zeros_like(token) + head * D
    if head < HEADS + KV_HEADS:
        position = tl.load(positions + token, mask=valid, other=0)
        which = tl.where(head < HEADS, 0, 1)
        value = rotated_head(
            qkv, sums, weights, which, table, token, column, position, valid, eps, width, TILES, ROPE, D
        )
    else:
        source = qkv + token[:, None].to(tl.int64) * width + column[:, None] + d[None, :]
        value = tl.load(source, mask=valid[:, None], other=0.0).to(tl.float32)
    if head < HEADS:
        place = q_out + token[:, None].to(tl.int64) * (HEADS * D) + column[:, None] + d[None, :]
        tl.store(place, value.to(q_out.dtype.element_ty), mask=valid[:, None])
    else:
        slot = tl.load(slots + token, mask=valid, other=0)
        kv = (head - HEADS) % KV_HEADS
        at = slot[:, None] * (KV_HEADS * D) + kv * D + d[None, :]
        stored = finite(value).to(keys.dtype.element_ty)
        if head < HEADS + KV_HEADS:
            tl.store(keys + at, stored, mask=valid[:, None])
        else:
            tl.store(values + at, stored, mask=valid[:, None])
