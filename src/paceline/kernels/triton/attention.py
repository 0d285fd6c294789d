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

from .attention_parts import (
    attend_step,
    fold,
    fold_stored,
    key_range,
    place_of,
    query_rows,
    query_tile,
    write_window,
)


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
            KV_HEADS, BLOCK, WINDOW, WIDE, D, KEYS,
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
        if key % SPLIT == 0:
            top, total, acc = fold(top, total, acc, part_top, part_total, part_acc)
            part_top = tl.full((64,), -1e30, tl.float32)
            part_total = tl.zeros((64,), tl.float32)
            part_acc = tl.zeros((64, D), tl.float32)
        part_top, part_total, part_acc = attend_step(
            query, position, keys, values, blocks, head, key, scale, columns, part_top, part_total, part_acc,
            KV_HEADS, BLOCK, WINDOW, WIDE, D, KEYS,
        )  # fmt: skip
    top, total, acc = fold(top, total, acc, part_top, part_total, part_acc)
    result = acc / total[:, None]
    place = place_of(first, r, head, HEADS, GROUP, D)
    tl.store(out + place[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
