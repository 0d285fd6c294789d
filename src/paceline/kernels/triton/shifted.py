"""Small kernels of a shifted drafter: where its pairs go, what they are made of, and the ring of taps (spec 15.14).

A pair's place q and the first place of its row that holds a pair give its key number q - first: keys are numbered
without a gap, so that attention needs no notion of places that hold nothing.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_kernel(
    index,
    wanted,
    lengths,
    covered,
    draft_length,
    row_length,
    first,
    limit,
    blocks,
    history,
    numbers,
    slots,
    tokens,
    columns,
    shift,
    table_columns,
    history_columns,
    LAG: tl.constexpr,
    SIZE: tl.constexpr,
    C: tl.constexpr,
):
    """Key numbers, slots and (``LAG``) tokens [B, columns] of the pairs up to place ``lengths + shift``.

    ``LAG``: of the rows ``wanted`` those not ``covered`` are kept, and the last one; the rows count as covered up to
    and with it. Else all are kept. What is not kept gets a scratch slot.
    """
    row = tl.program_id(0)
    owner = tl.load(index + row)
    wants = tl.load(wanted + row) != 0
    length = tl.load(lengths + row)
    start = tl.load(first + owner)
    column = tl.arange(0, C)
    inside = column < columns
    place = length + shift - (columns - 1) + column
    kept = wants & (place < tl.load(limit + owner))
    if LAG:
        known = tl.load(covered + owner)
        kept = kept & ((place >= tl.maximum(known, start)) | (column == columns - 1))
    held = tl.maximum(place, 0)
    entry = tl.where(kept, held // SIZE, table_columns - 1)
    block = tl.load(blocks + owner * table_columns + entry, mask=inside, other=0)
    at = row * columns + column
    tl.store(numbers + at, tl.maximum(place - start, 0), mask=inside)
    tl.store(slots + at, block * SIZE + held % SIZE, mask=inside)
    if LAG:
        token = tl.load(history + owner * history_columns + held, mask=inside, other=0)
        tl.store(tokens + at, token.to(tl.int64), mask=inside)
        now = tl.where(wants, length + 1, known)
        tl.store(covered + owner, now)
        tl.store(draft_length + owner, tl.minimum(now, tl.load(row_length + owner)))


@triton.jit
def slot_kernel(
    index, lengths, first, blocks, out, beyond, table_columns, out_columns, SIZE: tl.constexpr, TILE: tl.constexpr
):
    """``out`` [B, out_columns]: the slot of every key number of a row, up to ``beyond`` past its length."""
    row = tl.program_id(0)
    number = tl.program_id(1) * TILE + tl.arange(0, TILE)
    if tl.program_id(1) * TILE < tl.load(lengths + row) + beyond:
        owner = tl.load(index + row)
        place = number + tl.load(first + owner)
        entry = tl.minimum(place // SIZE, table_columns - 1)
        block = tl.load(blocks + owner * table_columns + entry)
        at = out + row.to(tl.int64) * out_columns + number
        tl.store(at, block * SIZE + place % SIZE, mask=number < out_columns)


@triton.jit
def join_kernel(tokens, table, hidden, out, hidden_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """``out`` [n, 2 * WIDTH]: each pair's embedding and hidden state, each divided by its root mean square."""
    row, half = tl.program_id(0), tl.program_id(1)
    feature = tl.arange(0, BLOCK)
    kept = feature < WIDTH
    if half == 0:
        source = table + tl.load(tokens + row) * WIDTH
    else:
        source = hidden + row.to(tl.int64) * hidden_stride
    value = tl.load(source + feature, mask=kept, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
    at = out + row.to(tl.int64) * (2 * WIDTH) + half * WIDTH + feature
    tl.store(at, (value * scale).to(out.dtype.element_ty), mask=kept)


@triton.jit
def keep_kernel(
    taps, ring, index, starts, counts, covered, draft_length, row_length, width, columns, taps_stride,
    starts_stride,
    RING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the first ``counts`` [B] of ``taps`` [B, columns, width] into ``ring`` [R, RING + 1, width], at positions
    from ``starts`` [B] on, and publish the rows' coverage."""
    at = tl.program_id(0)
    row, column = at // columns, at % columns
    owner, count = tl.load(index + row), tl.load(counts + row)
    if (column < count) & (column >= count - RING):
        feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        slot = (tl.load(starts + row * starts_stride) + column) % RING
        value = tl.load(taps + at.to(tl.int64) * taps_stride + feature, mask=feature < width, other=0.0)
        to = ring + (owner * (RING + 1) + slot) * width + feature
        tl.store(to, value.to(ring.dtype.element_ty), mask=feature < width)
    if (column == 0) & (tl.program_id(1) == 0):
        tl.store(draft_length + owner, tl.minimum(tl.load(covered + owner), tl.load(row_length + owner)))


@triton.jit
def take_kernel(ring, out, index, lengths, width, columns, RING: tl.constexpr, BLOCK: tl.constexpr):
    """``out`` [B, columns, width]: the taps of the positions before the pairs up to place ``lengths``."""
    at = tl.program_id(0)
    row, column = at // columns, at % columns
    owner = tl.load(index + row)
    position = tl.maximum(tl.load(lengths + row) - columns + column, 0)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = ring + (owner * (RING + 1) + position % RING) * width + feature
    value = tl.load(source, mask=feature < width, other=0.0)
    tl.store(out + at.to(tl.int64) * width + feature, value, mask=feature < width)
