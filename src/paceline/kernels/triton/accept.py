"""Acceptance of whole windows and the advance of the row tables' columns in one kernel, and benchmark coins."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def accept_kernel(
    draws,
    proposals,
    lengths,
    broken,
    index,
    pending,
    length,
    step,
    remaining,
    live,
    bad,
    eos_ids,
    history,
    figures,
    emitted_out,
    accepted_out,
    flags_out,
    width,
    columns,
    rows,
    EOS: tl.constexpr,
    PLACES: tl.constexpr,
):
    """One row: which draws it keeps (spec 8.4), its columns advanced, its figures.

    ``draws``, ``broken`` [B, width], ``proposals`` [B, width - 1], ``lengths`` and ``index`` [B]; ``history`` has
    ``columns`` columns, the last of which is spare. ``figures`` [B, 5 + 2 * width - 1]: emitted, accepted, saw_eos,
    bad, length, the proposals, the draws. ``flags_out`` [3, B] int8: saw_eos, ended, bad.
    """
    row = tl.program_id(0)
    owner = tl.load(index + row)
    depth = width - 1
    place = tl.arange(0, PLACES)
    drawn = tl.load(draws + row * width + place, mask=place < width, other=-1)
    proposed = tl.load(proposals + row * depth + place, mask=place < depth, other=-1)
    count = tl.load(lengths + row)
    right = (drawn == proposed) & (place < count)
    matched = tl.minimum(tl.min(tl.where(right, PLACES, place)), depth)
    ends = place < 0
    for number in tl.static_range(EOS):
        token = tl.load(eos_ids + owner * EOS + number)
        ends = ends | ((drawn == token) & (token >= 0))
    first_end = tl.min(tl.where(ends & (place < width), place, width))
    budget = tl.load(remaining + owner)
    was_live = tl.load(live + owner) != 0
    emitted = tl.minimum(tl.minimum(matched + 1, first_end), budget.to(tl.int32))
    saw = (first_end <= matched) & (first_end < budget)
    unread = tl.load(broken + row * width + place, mask=place < width, other=0) != 0
    used_bad = (tl.sum((unread & (place < emitted + saw.to(tl.int32))).to(tl.int32)) > 0) & was_live
    going = was_live & (used_bad == 0)
    emitted = tl.where(going, emitted, 0)
    saw = saw & going
    ended = going & (saw | (emitted == budget))
    accepted = tl.minimum(matched, emitted)

    old = tl.load(length + owner)
    to = old + 1 + place
    tl.store(history + owner * columns + to, drawn.to(tl.int32), mask=(place < emitted) & (to < columns - 1))
    last = tl.sum(tl.where(place == emitted - 1, drawn, 0))
    tl.store(pending + owner, last, mask=emitted > 0)
    tl.store(length + owner, old + 1 + accepted, mask=going)
    tl.store(step + owner, tl.load(step + owner) + emitted + saw.to(tl.int32), mask=going)
    tl.store(remaining + owner, budget - emitted, mask=going)
    tl.store(bad + owner, 1, mask=used_bad)
    tl.store(live + owner, (going & (ended == 0)).to(tl.int8))

    tl.store(emitted_out + row, emitted.to(tl.int64))
    tl.store(accepted_out + row, accepted.to(tl.int64))
    tl.store(flags_out + row, saw.to(tl.int8))
    tl.store(flags_out + rows + row, ended.to(tl.int8))
    tl.store(flags_out + 2 * rows + row, used_bad.to(tl.int8))
    at = figures + row * (5 + depth + width)
    tl.store(at, emitted.to(tl.int64))
    tl.store(at + 1, accepted.to(tl.int64))
    tl.store(at + 2, saw.to(tl.int64))
    tl.store(at + 3, used_bad.to(tl.int64))
    tl.store(at + 4, count.to(tl.int64))
    tl.store(at + 5 + place, proposed, mask=place < depth)
    tl.store(at + 5 + depth + place, drawn, mask=place < width)


@triton.jit
def coin_kernel(
    draws, proposals, lengths, seed, step, rate, out, width, DOMAIN: tl.constexpr, PLACES: tl.constexpr
):  # fmt: skip
    """``out`` [B, width]: each draw becomes its proposal where its coin is below ``rate`` [1], else another id."""
    row = tl.program_id(0)
    place = tl.arange(0, PLACES)
    drawn = tl.load(draws + row * width + place, mask=place < width, other=0)
    proposed = tl.load(proposals + row * (width - 1) + place, mask=place < width - 1, other=0)
    zero = place * 0
    now = ((tl.load(step + row) + place) & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
    word, _, _, _ = tl.philox(tl.load(seed + row), zero, now, zero + DOMAIN, zero)
    coin = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    other = tl.where(drawn > 0, drawn - 1, drawn + 1)
    forced = tl.where(coin < tl.load(rate), proposed, tl.where(drawn == proposed, other, drawn))
    forced = tl.where(place < tl.load(lengths + row), forced, drawn)
    tl.store(out + row * width + place, forced, mask=place < width)
