"""Draws with top-k, top-p and min-p in three passes over the logits, without a tensor of probabilities.

Ids of a row are ordered by (logit descending, id ascending); top-k and top-p each leave a prefix of that order. Pass 1
finds the largest and the smallest logit. Pass 2 counts ids in bins of equal width below the largest. The counts bound
where the prefix ends: bins before the *bracket* are in it, bins behind it are not. Pass 3 draws among the former and
copies the ids of the bracket, of which a last kernel finds exactly those that belong to the prefix. Masses are whole
numbers of units (``sampling.units``), so every sum and every set is exact, whatever the split of a row.

A row whose bracket is too long for its buffer is read again where it lies, which is slow and equally exact.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl

from .noise import NONE, best_noisy, units_of, weight_of, words_of
from .prefix import asked_tile, bins_of, gaps_of, least_order, mass_until, rounded_product
from .sample import owner_of, words_at

FACTS = tl.constexpr(8)
"""Numbers of a row's plan: first bin of the bracket, its end, the bin of the k-th id (-1: no top-k), ids before the
bracket, ids before that bin, ids to copy, whether anything is in question, whether top-p acts."""


@triton.jit
def scan_kernel(
    logits, peaks, lows, best_out, place_out, bad_out, counts, masses, stride, count, per_program,
    BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Pass 1: largest logit and its place, smallest finite logit, and a flag for what is not a number, per part.

    Also clears what later passes add to: ``counts`` [M, BINS] and ``masses`` [M, 4].
    """
    row, part = tl.program_id(0), tl.program_id(1)
    base = logits + row.to(tl.int64) * stride
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    where = tl.full((BLOCK,), NONE, tl.int32)
    odd = tl.zeros((BLOCK,), tl.int32)
    start = part * per_program
    for first in range(start, tl.minimum(start + per_program, count), BLOCK):
        places = first + tl.arange(0, BLOCK)
        x = tl.load(base + places, mask=places < count, other=float("-inf")).to(tl.float32)
        odd |= ((x != x) | (x == float("inf"))).to(tl.int32)
        where = tl.where(x > top, places, where)
        top = tl.maximum(top, x)
        least = tl.where(x > float("-inf"), tl.minimum(least, x), least)
    broken = tl.max(odd)
    best, low = tl.max(top), tl.min(least)
    place = tl.min(tl.where(top == best, where, NONE))
    at = row * tl.num_programs(1) + part
    tl.store(peaks + at, best)
    tl.store(lows + at, low)
    tl.store(best_out + at, best)
    tl.store(place_out + at, place)
    tl.store(bad_out + at, broken)
    if part == 0:
        bins = tl.arange(0, BINS)
        tl.store(counts + row * BINS + bins, tl.zeros_like(bins))
        four = tl.arange(0, 4)
        tl.store(masses + row * 4 + four, tl.zeros_like(four).to(tl.int64))


@triton.jit
def extremes(peaks, lows, row, parts, PARTS: tl.constexpr):
    """Largest and smallest logit of a row from its parts."""
    part = tl.arange(0, PARTS)
    held = part < parts
    peak = tl.max(tl.load(peaks + row * parts + part, mask=held, other=float("-inf")))
    low = tl.min(tl.load(lows + row * parts + part, mask=held, other=float("inf")))
    return peak, low


@triton.jit
def narrows(k, p, count):
    """Whether top-k or top-p acts on a row of ``count`` ids."""
    return ((k > 0) & (k < count)) | ((p > 0) & (p < 1))


@triton.jit
def count_kernel(
    logits, index, temperature, top_k, top_p, peaks, lows, counts, masses, stride, count, per_program, parts,
    WIDTH: tl.constexpr, INDEXED: tl.constexpr, PARTS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
    DEVICE: tl.constexpr,
):  # fmt: skip
    """Pass 2: add the ids of a part to ``counts`` [M, BINS] and their units to ``masses`` [M, 0]."""
    row, part = tl.program_id(0), tl.program_id(1)
    owner, _spot = owner_of(row, index, WIDTH, INDEXED)
    heat = tl.load(temperature + owner)
    if (heat > 1e-5) & narrows(tl.load(top_k + owner), tl.load(top_p + owner), count):
        base = logits + row.to(tl.int64) * stride
        peak, low = extremes(peaks, lows, row, parts, PARTS)
        found = tl.zeros((BINS,), tl.int32)
        units = tl.zeros((BLOCK,), tl.int64)
        start = part * per_program
        end = tl.minimum(start + per_program, count)
        for first in range(start, end, BLOCK):
            places = first + tl.arange(0, BLOCK)
            x = tl.load(base + places, mask=places < end, other=float("-inf")).to(tl.float32)
            _scaled, gap, reach = gaps_of(x, peak, low, heat)
            inside = gap <= reach
            found += tl.histogram(bins_of(gap, reach, BINS), BINS, mask=inside)
            units += tl.where(inside, units_of(weight_of(gap, DEVICE)), 0)
        bins = tl.arange(0, BINS)
        tl.atomic_add(counts + row * BINS + bins, found, mask=found > 0, sem="relaxed")
        tl.atomic_add(masses + row * 4, tl.sum(units), sem="relaxed")


@triton.jit
def plan_kernel(
    index, temperature, top_k, top_p, peaks, lows, counts, masses, plan, copied, count, parts, capacity,
    WIDTH: tl.constexpr, INDEXED: tl.constexpr, PARTS: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """From a row's counts: where the prefix surely holds, where it surely does not, and how many ids lie between."""
    row = tl.program_id(0)
    owner, _spot = owner_of(row, index, WIDTH, INDEXED)
    heat, k, p = tl.load(temperature + owner), tl.load(top_k + owner), tl.load(top_p + owner).to(tl.float64)
    peak, low = extremes(peaks, lows, row, parts, PARTS)
    _top, _gap, reach = gaps_of(peak, peak, low, heat)
    bins = tl.arange(0, BINS)
    found = tl.load(counts + row * BINS + bins)
    until = tl.cumsum(found, 0)
    total = tl.sum(found)
    by_k, by_p = (k > 0) & (k < total), (p > 0) & (p < 1)
    # bounds of the units before and up to each bin: from the front, and from the exact total less what follows
    edge = reach / BINS
    most = tl.exp(-(bins * edge) * 0.99999) * 8590020000.0 + 1.0
    least = tl.maximum(tl.exp(-((bins + 1) * edge) * 1.00001 - 1e-6) * 8589848000.0 - 1.0, 0.0)
    upper, lower = found.to(tl.float64) * most.to(tl.float64), found.to(tl.float64) * least.to(tl.float64)
    upper_until, lower_until = tl.cumsum(upper, 0), tl.cumsum(lower, 0)
    whole = tl.load(masses + row * 4).to(tl.float64)
    high = tl.minimum(upper_until, whole - (tl.sum(lower) - lower_until)) + 4.0
    before_high = tl.minimum(upper_until - upper, whole - (tl.sum(lower) - lower_until + lower)) + 4.0
    before_low = tl.maximum(lower_until - lower, whole - (tl.sum(upper) - upper_until + upper)) - 4.0
    # the bin of the k-th id, and the units of the first k ids
    k_bin = tl.where(by_k, tl.sum((until < k).to(tl.int32)), BINS)
    at_k = bins == k_bin
    rank = tl.sum(tl.where(at_k, until - found, 0))
    inside = (k - rank).to(tl.float64)
    need_low = tl.sum(tl.where(at_k, before_low + inside * least.to(tl.float64), 0.0))
    need_high = tl.sum(tl.where(at_k, tl.minimum(high, before_high + inside * most.to(tl.float64)), 0.0))
    need_low = p * tl.where(by_k, need_low, whole) * (1.0 - 1e-9)
    need_high = p * tl.where(by_k, need_high, whole) * (1.0 + 1e-9)
    surely = tl.sum((high < need_low).to(tl.int32))
    maybe = BINS - tl.sum((before_low >= need_high).to(tl.int32))
    start = tl.minimum(tl.where(by_p, surely, BINS), k_bin)
    end = tl.minimum(tl.where(by_p, tl.maximum(maybe, start), BINS), k_bin + 1)
    end = tl.maximum(end, start)
    apart = by_k & by_p & (k_bin >= end)
    ahead = tl.sum(tl.where(bins < start, found, 0))
    asked = tl.sum(tl.where((bins >= start) & (bins < end), found, 0))
    asked += tl.where(apart, tl.sum(tl.where(at_k, found, 0)), 0)
    at = plan + row * FACTS
    open_question = (heat > 1e-5) & (by_k | by_p)
    tl.store(at, tl.where(open_question, start, BINS))
    tl.store(at + 1, tl.where(open_question, end, BINS))
    tl.store(at + 2, tl.where(open_question & by_k, k_bin, -1))
    tl.store(at + 3, ahead)
    tl.store(at + 4, rank)
    tl.store(at + 5, tl.where(open_question & (asked <= capacity), asked, 0))
    tl.store(at + 6, (open_question & (asked > 0)).to(tl.int32) + (open_question & (asked > capacity)).to(tl.int32))
    tl.store(at + 7, by_p.to(tl.int32))
    tl.store(copied + row, 0)


@triton.jit
def gather_kernel(
    logits, ids, index, temperature, min_p, seed, step, peaks, lows, plan, masses, copied, buffer, buffer_places,
    best_out, place_out, stride, count, offset, per_program, parts, capacity,
    WIDTH: tl.constexpr, INDEXED: tl.constexpr, LISTED: tl.constexpr, PARTS: tl.constexpr, BINS: tl.constexpr,
    BLOCK: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """Pass 3: the best of the ids before the bracket, their units in ``masses`` [M, 1], those between the bracket and
    the bin of the k-th id in ``masses`` [M, 2], and copies of the ids in question."""
    row, part = tl.program_id(0), tl.program_id(1)
    owner, inside_window = owner_of(row, index, WIDTH, INDEXED)
    heat = tl.load(temperature + owner)
    if heat > 1e-5:
        key, now = tl.load(seed + owner), tl.load(step + owner) + offset + inside_window
        least = tl.load(min_p + owner)
        base = logits + row.to(tl.int64) * stride
        peak, low = extremes(peaks, lows, row, parts, PARTS)
        at = plan + row * FACTS
        start, end, k_bin = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        asked, by_p = tl.load(at + 5), tl.load(at + 7)
        best = tl.full((), float("-inf"), tl.float32)
        place = tl.full((), NONE, tl.int32)
        ahead = tl.zeros((BLOCK,), tl.int64)
        between = tl.zeros((BLOCK,), tl.int64)
        begin = part * per_program
        for first in range(begin, tl.minimum(begin + per_program, count), BLOCK):
            places = first + tl.arange(0, BLOCK)
            x = tl.load(base + places, mask=places < count, other=float("-inf")).to(tl.float32)
            scaled, gap, reach = gaps_of(x, peak, low, heat)
            counted = gap <= reach
            bins = bins_of(gap, reach, BINS)
            sure = counted & (bins < start)
            # what lies between bracket and k-th id counts for the mass alone
            apart = counted & (bins >= end) & (bins < k_bin) & (by_p > 0)
            asks = counted & (asked > 0) & (((bins >= start) & (bins < end)) | ((by_p > 0) & (bins == k_bin)))
            here = tl.sum(asks.to(tl.int32) + ((sure | apart).to(tl.int32) << 16))
            if here >= 65536:
                weight = weight_of(gap, DEVICE)
                if by_p > 0:
                    units = units_of(weight)
                    ahead += tl.where(sure, units, 0)
                    between += tl.where(apart, units, 0)
                words = words_at(ids, key, now, first, places, count, LISTED, BLOCK)
                allowed = sure & (weight >= least)
                best, place = best_noisy(best, place, tl.where(allowed, scaled, float("-inf")), words, places)
            if here % 65536 > 0:
                slot = tl.atomic_add(copied + row, here % 65536, sem="relaxed")
                slot = slot + tl.cumsum(asks.to(tl.int32), 0) - 1
                kept = asks & (slot < capacity)
                to = row.to(tl.int64) * capacity + slot
                tl.store(buffer + to, x, mask=kept)
                tl.store(buffer_places + to, places, mask=kept)
        out = row * tl.num_programs(1) + part
        tl.store(best_out + out, best)
        tl.store(place_out + out, place)
        if by_p > 0:
            tl.atomic_add(masses + row * 4 + 1, tl.sum(ahead), sem="relaxed")
            tl.atomic_add(masses + row * 4 + 2, tl.sum(between), sem="relaxed")


@triton.jit
def finish_kernel(
    logits, ids, index, temperature, top_k, top_p, min_p, seed, step, peaks, lows, plan, masses, buffer,
    buffer_places, best_out, place_out, stride, count, offset, parts, capacity,
    WIDTH: tl.constexpr, INDEXED: tl.constexpr, LISTED: tl.constexpr, PARTS: tl.constexpr, BINS: tl.constexpr,
    SIZE: tl.constexpr, WAYS: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """Which ids of the bracket belong to the prefix; the best of them improves the row's first part."""
    row = tl.program_id(0)
    asked_kind = tl.load(plan + row * FACTS + 6)
    if asked_kind > 0:
        owner, inside_window = owner_of(row, index, WIDTH, INDEXED)
        heat, least = tl.load(temperature + owner), tl.load(min_p + owner)
        key, now = tl.load(seed + owner), tl.load(step + owner) + offset + inside_window
        peak, low = extremes(peaks, lows, row, parts, PARTS)
        at = plan + row * FACTS
        start, end, k_bin = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        by_p = tl.load(at + 7)
        from_row = asked_kind > 1
        limit = tl.where(from_row, count, tl.load(at + 5))
        source = buffer + row.to(tl.int64) * capacity
        places_at = buffer_places + row.to(tl.int64) * capacity
        if from_row:
            source = logits + row.to(tl.int64) * stride
        until_k = tl.full((), 9007199254740992, tl.int64)
        until_p = until_k
        apart = (k_bin >= 0) & (k_bin >= end)
        ahead = tl.load(masses + row * 4 + 1)
        whole = tl.load(masses + row * 4)
        if k_bin >= 0:
            rank = tl.load(top_k + owner) - tl.load(at + 3 + apart.to(tl.int32))
            kind = tl.where(apart, 2, 1)
            until_k = least_order(
                source, places_at, limit, from_row, peak, low, heat, start, end, k_bin, by_p, kind,
                rank.to(tl.float64), False, BINS, SIZE, WAYS, DEVICE,
            )  # fmt: skip
            if by_p > 0:
                # in the order, the bracket comes before the bin of the k-th id
                whole = ahead + tl.load(masses + row * 4 + 2) + mass_until(
                    source, places_at, limit, from_row, peak, low, heat, start, end, k_bin, by_p, 0, until_k,
                    BINS, SIZE, DEVICE,
                )  # fmt: skip
        if by_p > 0:
            goal = rounded_product(tl.load(top_p + owner), whole, DEVICE) - ahead.to(tl.float64)
            until_p = tl.full((), -1, tl.int64)
            if goal > 0.0:
                until_p = least_order(
                    source, places_at, limit, from_row, peak, low, heat, start, end, k_bin, by_p, 1, goal, True,
                    BINS, SIZE, WAYS, DEVICE,
                )  # fmt: skip
        until = tl.minimum(until_k, until_p)
        best = tl.load(best_out + row * parts)
        place = tl.load(place_out + row * parts)
        for first in range(0, limit, SIZE):
            order, _units, scaled, weight, places, bracket, _counted = asked_tile(
                source, places_at, first, limit, from_row, peak, low, heat, start, end, k_bin, by_p, 0,
                BINS, SIZE, DEVICE,
            )  # fmt: skip
            permitted = bracket & (order <= until) & (weight >= least)
            if LISTED:
                chosen = tl.load(ids + places, mask=permitted, other=0).to(tl.int32)
            else:
                chosen = places
            words = words_of(key, now, 0, chosen)
            best, place = best_noisy(best, place, tl.where(permitted, scaled, float("-inf")), words, places)
        tl.store(best_out + row * parts, best)
        tl.store(place_out + row * parts, place)
