"""Parts of the attention kernels: which queries and keys a tile has, one step over keys, folding of splits."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl

from .rotary import finite, rotated_head


@triton.jit
def query_tile(tiles, index, width, TOKENS: tl.constexpr):
    """Row of the batch, first flat token and number of tokens of a tile: from a list, or of a rectangle."""
    if tiles is None:
        per_row = tl.cdiv(width, TOKENS)
        row = index // per_row
        offset = (index % per_row) * TOKENS
        return row, row * width + offset, tl.minimum(width - offset, TOKENS)
    else:
        at = tiles + index * 3
        return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def key_range(positions, first, count, WINDOW: tl.constexpr):
    """Absolute positions of the first key that a tile sees (or an earlier one) and of the one after the last."""
    begin = 0
    if WINDOW:
        begin = tl.maximum(tl.load(positions + first) - (WINDOW - 1), 0).to(tl.int32)
    return begin, (tl.load(positions + first + count - 1) + 1).to(tl.int32)


@triton.jit
def attend_step(
    q,
    position,
    keys,
    values,
    table,
    head,
    first,
    scale,
    columns,
    top,
    total,
    acc,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Take the keys first .. first + KEYS into the sums of a split: maximum [64], weights [64] and weighted values
    [64, D] relative to it. ``scale`` includes log2(e)."""
    d = tl.arange(0, D)
    key = first + tl.arange(0, KEYS)
    block = tl.load(table + tl.minimum(key // BLOCK, columns - 1))
    slot = block * BLOCK + key % BLOCK
    if not WIDE:
        slot = slot.to(tl.int32)
    at = slot[:, None] * (KV_HEADS * D) + head * D + d[None, :]
    seen = key[None, :] <= position[:, None]
    if WINDOW:
        seen = seen & (key[None, :] > position[:, None] - WINDOW)
    entries, value = tl.load(keys + at), tl.load(values + at)
    scores = tl.where(seen, tl.dot(q, tl.trans(entries)) * scale, -1e30)
    higher = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp2(top - higher)
    weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(value.dtype), value, acc * shrink[:, None])
    return higher, total, acc


@triton.jit
def fold(top, total, acc, next_top, next_total, next_acc):
    """Sums over some splits and over the split behind them, as sums over both."""
    higher = tl.maximum(top, next_top)
    left, right = tl.exp2(top - higher), tl.exp2(next_top - higher)
    acc = acc * left[:, None] + next_acc * right[:, None]
    return higher, total * left + next_total * right, acc


@triton.jit
def stored_split(partial, marks, base, number, count, held_rows, rows, valid, d, D: tl.constexpr):
    """What one split of a tile stored; neutral sums past the last one."""
    at = (base + number) * held_rows + rows
    valid = valid & (number < count)
    # other programs wrote these: the first-level cache is not to be asked
    top = tl.load(marks + at * 2, mask=valid, other=-1e30, cache_modifier=".cg")
    total = tl.load(marks + at * 2 + 1, mask=valid, other=0.0, cache_modifier=".cg")
    place = at[:, None].to(tl.int64) * D + d[None, :]
    return top, total, tl.load(partial + place, mask=valid[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def fold_stored(partial, marks, base, count, held_rows, rows, valid, d, D: tl.constexpr):
    """Fold the stored sums of ``count`` splits from number ``base`` on, for some rows [R] of the tile: [R, D].

    Where registers allow, four splits are on their way at a time.
    """
    top = tl.full(rows.shape, -1e30, tl.float32)
    total = tl.zeros(rows.shape, tl.float32)
    acc = tl.zeros((rows.shape[0], d.shape[0]), tl.float32)
    if rows.shape[0] <= 16:
        for first in range(0, count, 4):
            top0, total0, acc0 = stored_split(partial, marks, base, first, count, held_rows, rows, valid, d, D)
            top1, total1, acc1 = stored_split(partial, marks, base, first + 1, count, held_rows, rows, valid, d, D)
            top2, total2, acc2 = stored_split(partial, marks, base, first + 2, count, held_rows, rows, valid, d, D)
            top3, total3, acc3 = stored_split(partial, marks, base, first + 3, count, held_rows, rows, valid, d, D)
            top, total, acc = fold(top, total, acc, top0, total0, acc0)
            top, total, acc = fold(top, total, acc, top1, total1, acc1)
            top, total, acc = fold(top, total, acc, top2, total2, acc2)
            top, total, acc = fold(top, total, acc, top3, total3, acc3)
    else:
        for number in range(count):
            top0, total0, acc0 = stored_split(partial, marks, base, number, count, held_rows, rows, valid, d, D)
            top, total, acc = fold(top, total, acc, top0, total0, acc0)
    return acc / total[:, None]


@triton.jit
def place_of(first, rows, head, HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    """Element offset, in [tokens, HEADS * D], of the head that each row of a tile stands for."""
    return (first + rows // GROUP).to(tl.int64) * (HEADS * D) + (head * GROUP + rows % GROUP) * D


@triton.jit
def query_rows(
    q,
    sums,
    weights,
    angles,
    position,
    first,
    r,
    head,
    valid,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """The queries of a tile [64, D], rotated here from the raw product if ``ROTATE``."""
    if ROTATE:
        token = first + r // GROUP
        column = (head * GROUP + r % GROUP) * D
        width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
        raw = rotated_head(q, sums, weights, 0, angles, token, column, position, valid, eps, width, TILES, ROPE, D)
        return raw.to(q.dtype.element_ty)
    else:
        d = tl.arange(0, D)
        source = place_of(first, r, head, HEADS, GROUP, D)
        return tl.load(q + source[:, None] + d[None, :], mask=valid[:, None], other=0.0)


@triton.jit
def write_window(
    qkv,
    sums,
    weights,
    table,
    positions,
    slots,
    keys,
    values,
    first,
    count,
    begin,
    end,
    head,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Rotate the window's keys at positions begin .. end and write them and their values to their slots."""
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    d = tl.arange(0, D)
    token = first + tl.arange(0, TOKENS)
    inside = tl.arange(0, TOKENS) < count
    position = tl.load(positions + token, mask=inside, other=-1)
    inside = inside & (position >= begin) & (position < end)
    column = tl.zeros_like(token) + (HEADS + head) * D
    key = rotated_head(qkv, sums, weights, 1, table, token, column, position, inside, eps, width, TILES, ROPE, D)
    at = qkv + token[:, None].to(tl.int64) * width + (HEADS + KV_HEADS + head) * D + d[None, :]
    value = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    slot = tl.load(slots + token, mask=inside, other=0)
    place = slot[:, None] * (KV_HEADS * D) + head * D + d[None, :]
    tl.store(keys + place, finite(key).to(keys.dtype.element_ty), mask=inside[:, None])
    tl.store(values + place, finite(value).to(values.dtype.element_ty), mask=inside[:, None])
