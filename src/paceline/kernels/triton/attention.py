"""Paged attention kernels. A tile is 64 query rows: tokens of one row of the batch x the query heads of one key head.

Keys are taken in tiles and splits at absolute multiples of constants. A tile or split that a query does not see leaves
its sums as they are, bit for bit, so a query's result depends on its own position alone. Splits are folded in order;
whether that happens beside other programs or inside one makes no difference.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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
    FRESH: tl.constexpr,
):
    """Take the keys first .. first + KEYS into the sums of a split: maximum [64], weights [64] and weighted values
    [64, D] relative to it. ``FRESH``: they are its first, whatever the sums hold. ``scale`` includes log2(e)."""
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
    if FRESH:
        higher = tl.max(scores, 1)
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        total = tl.sum(weights, 1)
        acc = tl.dot(weights.to(value.dtype), value)
    else:
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


@triton.jit(do_not_specialize=["width", "columns", "held_rows"])
def split_kernel(
    q,
    sums,
    weights,
    angles,
    keys,
    values,
    table,
    positions,
    slots,
    tiles,
    partial,
    marks,
    arrivals,
    out,
    width,
    columns,
    held_rows,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROTATE: tl.constexpr,
    FOLD: tl.constexpr,
    EARLY: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """One split of one tile: for windows of few tokens.

    ``ROTATE`` > 0: ``q`` is the raw product [tokens, (HEADS + 2 KV_HEADS) * D] of windows of at most ROTATE tokens;
    q/k norm, rotation and the write of keys and values happen here. Else ``q`` holds rotated queries and the keys are
    in place. ``FOLD``: the last program of a tile to arrive folds the splits, of so many rows (>= ``held_rows``); 0:
    ``fold_kernel`` does. ``CHAIN``: this launch starts before the one before it has ended, and
    with ``EARLY`` lets the next one start at once.
    """
    head = tl.program_id(0) % KV_HEADS
    row, first, count = query_tile(tiles, tl.program_id(0) // KV_HEADS, width, 64 // GROUP)
    low, last = key_range(positions, first, count, WINDOW)
    split = low // SPLIT + tl.program_id(1)
    begin = tl.maximum(split * SPLIT, low // KEYS * KEYS)
    end = tl.minimum(split * SPLIT + SPLIT, last)
    if CHAIN and EARLY:
        gdc_launch_dependents()
    if begin >= end:
        return
    if CHAIN:
        gdc_wait()
    if ROTATE:
        write_window(
            q, sums, weights, angles, positions, slots, keys, values, first, count, begin, end, head, eps,
            HEADS, KV_HEADS, TILES, ROPE, D, ROTATE,
        )  # fmt: skip
        tl.debug_barrier()
    r = tl.arange(0, 64)
    d = tl.arange(0, D)
    valid = r < count * GROUP
    position = tl.load(positions + first + r // GROUP, mask=valid, other=0).to(tl.int32)
    query = query_rows(
        q, sums, weights, angles, position, first, r, head, valid, eps,
        HEADS, KV_HEADS, GROUP, TILES, ROPE, D, ROTATE,
    )  # fmt: skip
    top = tl.full((64,), -1e30, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, D), tl.float32)
    blocks = table + row.to(tl.int64) * columns
    for key in range(begin, end, KEYS):
        top, total, acc = attend_step(
            query, position, keys, values, blocks, head, key, scale, columns, top, total, acc,
            KV_HEADS, BLOCK, WINDOW, WIDE, D, KEYS, SPLIT == KEYS,
        )  # fmt: skip
    splits = (last - 1) // SPLIT - low // SPLIT + 1
    place = place_of(first, r, head, HEADS, GROUP, D)
    base = tl.program_id(0) * tl.num_programs(1)
    if splits == 1:
        single = acc / total[:, None]
        tl.store(out + place[:, None] + d[None, :], single.to(out.dtype.element_ty), mask=valid[:, None])
    else:
        at = (base + tl.program_id(1)) * held_rows + r
        tl.store(marks + at * 2, top, mask=valid)
        tl.store(marks + at * 2 + 1, total, mask=valid)
        tl.store(partial + at[:, None].to(tl.int64) * D + d[None, :], acc, mask=valid[:, None])
        if FOLD:
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel")
            if arrived == splits - 1:
                tl.debug_barrier()
                few = tl.arange(0, FOLD)
                kept = few < count * GROUP
                result = fold_stored(partial, marks, base, splits, held_rows, few, kept, d, D)
                final = place_of(first, few, head, HEADS, GROUP, D)
                tl.store(out + final[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=kept[:, None])
                tl.store(arrivals + tl.program_id(0), 0)


@triton.jit(do_not_specialize=["width", "splits", "held_rows"])
def fold_kernel(
    partial,
    marks,
    positions,
    tiles,
    out,
    width,
    splits,
    held_rows,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Fold what ``split_kernel`` stored, ``splits`` places per tile: one program per query row."""
    head = tl.program_id(0) % KV_HEADS
    _, first, count = query_tile(tiles, tl.program_id(0) // KV_HEADS, width, 64 // GROUP)
    low, last = key_range(positions, first, count, WINDOW)
    stored = (last - 1) // SPLIT - low // SPLIT + 1
    if (tl.program_id(1) < count * GROUP) & (stored > 1):
        r = tl.program_id(1) + tl.arange(0, 1)
        d = tl.arange(0, D)
        result = fold_stored(partial, marks, tl.program_id(0) * splits, stored, held_rows, r, r >= 0, d, D)
        place = place_of(first, r, head, HEADS, GROUP, D)
        tl.store(out + place[:, None] + d[None, :], result.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["width", "columns"])
def row_kernel(
    q,
    sums,
    weights,
    angles,
    keys,
    values,
    table,
    positions,
    slots,
    tiles,
    out,
    width,
    columns,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDE: tl.constexpr,
    TILES: tl.constexpr,
    ROPE: tl.constexpr,
    D: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROTATE: tl.constexpr,
    EARLY: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """All splits of one tile, one after the other: where tiles fill the device by themselves (many rows, prompts).

    Arguments as in ``split_kernel``.
    """
    head = tl.program_id(0) % KV_HEADS
    row, first, count = query_tile(tiles, tl.program_id(0) // KV_HEADS, width, 64 // GROUP)
    low, last = key_range(positions, first, count, WINDOW)
    if CHAIN and EARLY:
        gdc_launch_dependents()
    if CHAIN:
        gdc_wait()
    if ROTATE:
        write_window(
            q, sums, weights, angles, positions, slots, keys, values, first, count, 0, last, head, eps,
            HEADS, KV_HEADS, TILES, ROPE, D, ROTATE,
        )  # fmt: skip
        tl.debug_barrier()
    r = tl.arange(0, 64)
    d = tl.arange(0, D)
    valid = r < count * GROUP
    position = tl.load(positions + first + r // GROUP, mask=valid, other=0).to(tl.int32)
    query = query_rows(
        q, sums, weights, angles, position, first, r, head, valid, eps,
        HEADS, KV_HEADS, GROUP, TILES, ROPE, D, ROTATE,
    )  # fmt: skip
    top = tl.full((64,), -1e30, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, D), tl.float32)
    part_top, part_total, part_acc = top, total, acc
    blocks = table + row.to(tl.int64) * columns
    for key in range(low // KEYS * KEYS, last, KEYS):
        if SPLIT != KEYS:  # noqa: SIM102  # known when compiling
            if key % SPLIT == 0:
                top, total, acc = fold(top, total, acc, part_top, part_total, part_acc)
                part_top = tl.full((64,), -1e30, tl.float32)
                part_total = tl.zeros((64,), tl.float32)
                part_acc = tl.zeros((64, D), tl.float32)
        part_top, part_total, part_acc = attend_step(
            query, position, keys, values, blocks, head, key, scale, columns, part_top, part_total, part_acc,
            KV_HEADS, BLOCK, WINDOW, WIDE, D, KEYS, SPLIT == KEYS,
        )  # fmt: skip
        if SPLIT == KEYS:
            top, total, acc = fold(top, total, acc, part_top, part_total, part_acc)
    if SPLIT != KEYS:
        top, total, acc = fold(top, total, acc, part_top, part_total, part_acc)
    result = acc / total[:, None]
    place = place_of(first, r, head, HEADS, GROUP, D)
    tl.store(out + place[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
