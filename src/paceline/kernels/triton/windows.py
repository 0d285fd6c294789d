"""The windows of a round from the columns of the row tables: tokens, positions, slots, block tables in one launch."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def window_kernel(
    index,
    pending,
    length,
    limit,
    remaining,
    live,
    drafted,
    drafted_lengths,
    depths,
    given,
    given_lengths,
    table,
    proposals,
    lengths,
    tokens,
    positions,
    slots,
    picked,
    columns,
    held,
    depth,
    vocabulary,
    DRAFTS: tl.constexpr,
    GIVEN: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Program (row, tile): ``SPAN`` columns of the row's block table, and in tile 0 its window of ``depth + 1`` places.

    ``table`` [R, columns] -> ``picked`` [B, held], padded with block 0. ``drafted`` [B, DRAFTS] and ``given``
    [B, GIVEN] (0 = there are none): a row's given proposals go before drafted ones where its given length is > 0.
    ``FIRST``: store what is the same for every block group.
    """
    row = tl.program_id(0)
    owner = tl.load(index + row)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    block = tl.load(table + owner * columns + column, mask=column < columns, other=0)
    tl.store(picked + row.to(tl.int64) * held + column, block, mask=column < held)
    if tl.program_id(1) == 0:
        place = tl.arange(0, PLACES)
        proposed = tl.zeros((PLACES,), tl.int64)
        count = owner * 0
        if DRAFTS > 0:
            token = tl.load(drafted + row * DRAFTS + place, mask=place < DRAFTS, other=0).to(tl.int64)
            legal = tl.min(tl.where((token < 0) | (token >= vocabulary), place, DRAFTS)).to(tl.int64)
            count = tl.minimum(tl.load(depths + row), tl.load(remaining + owner))
            count = tl.maximum(tl.minimum(tl.minimum(count, legal), tl.load(drafted_lengths + row).to(tl.int64)), 0)
            proposed = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
        if GIVEN > 0:
            told = tl.load(given_lengths + row)
            uploaded = tl.load(given + row * GIVEN + place, mask=place < GIVEN, other=0)
            proposed = tl.where(told > 0, uploaded, proposed)
            count = tl.where(told > 0, told, count)
        start = tl.load(length + owner)
        position = start + place
        inside = place <= depth
        if FIRST:
            newest = tl.load(pending + owner)
            tl.store(lengths + row, count)
            tl.store(proposals + row * depth + place, proposed, mask=place < depth)
            window = row * (depth + 1)
            # padding repeats the pending token: an id that exists, in a place that nobody reads
            tl.store(tokens + window, newest)
            tl.store(tokens + window + 1 + place, tl.where(place < count, proposed, newest), mask=place < depth)
            tl.store(positions + window + place, position, mask=inside)
        kept = (place <= count) & (tl.load(live + owner) != 0) & (position < tl.load(limit + owner))
        # the last column of a table is always scratch
        entry = tl.where(kept, position // BLOCK, columns - 1)
        slot = tl.load(table + owner * columns + entry, mask=inside, other=0) * BLOCK + position % BLOCK
        tl.store(slots + row * (depth + 1) + place, slot, mask=inside)
