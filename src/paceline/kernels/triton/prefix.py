"""Device helpers of the filtered sampler: the bins that ids are counted in, and the search for the end of a prefix in
the order of the ids, (logit descending, id ascending)."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .noise import single, units_of, weight_of

REACH = tl.constexpr(26.0)
"""Ids further below the largest tempered logit than this have no unit of mass and lose against it by any noise."""


@triton.jit
def gaps_of(x, peak, low, heat):
    """How far tempered logits are below their largest, and the greatest gap that counts."""
    top = single(peak, heat)
    scaled = single(x, heat)
    gap = tl.where(scaled == top, 0.0, top - scaled)
    return scaled, gap, tl.minimum(top - single(low, heat), REACH)


@triton.jit
def bins_of(gap, reach, BINS: tl.constexpr):
    """Bin [0, BINS) of every gap up to ``reach``; larger ones get no meaningful bin."""
    scale = BINS / tl.maximum(reach, 1e-30)
    return tl.maximum(tl.minimum(tl.minimum(gap, reach) * tl.minimum(scale, 1e30), BINS - 1.0), 0.0).to(tl.int32)


@triton.jit
def rounded_product(share, whole, DEVICE: tl.constexpr):
    """share * whole in float64, rounded before anything else is done with it."""
    if DEVICE:
        return libdevice.mul_rn(share.to(tl.float64), whole.to(tl.float64))
    return share.to(tl.float64) * whole.to(tl.float64)


@triton.jit
def order_of(x, places):
    """Whole numbers that ascend in the order of the ids: (logit descending, place ascending)."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((2147483647 - ascending.to(tl.int64)) << 21) + places


@triton.jit
def asked_tile(source, source_places, first, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
               BINS: tl.constexpr, SIZE: tl.constexpr, DEVICE: tl.constexpr):  # fmt: skip
    """One tile of the ids in question: order, units, scaled logits, weights, places; which are in the bracket, and
    which count among those ``part_of`` 0: all, 1: the bracket, 2: the bin of the k-th id."""
    at = first + tl.arange(0, SIZE)
    held = at < limit
    x = tl.load(source + at, mask=held, other=float("-inf")).to(tl.float32)
    places = tl.where(from_row, at, tl.load(source_places + at, mask=held & ~from_row, other=0))
    scaled, gap, reach = gaps_of(x, peak, low, heat)
    bins = bins_of(gap, reach, BINS)
    counted = held & (gap <= reach)
    bracket = counted & (bins >= start) & (bins < end)
    last = counted & (bins == k_bin) & ((by_p > 0) | bracket)
    weight = weight_of(gap, DEVICE)
    chosen = tl.where(part_of == 0, bracket | last, tl.where(part_of == 1, bracket, last))
    return order_of(x, places), units_of(weight), scaled, weight, places, bracket, chosen


@triton.jit
def order_range(source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
                bottom, top, BINS: tl.constexpr, SIZE: tl.constexpr, DEVICE: tl.constexpr):  # fmt: skip
    """Least and greatest order of the ids of ``part_of`` within ``bottom`` .. ``top``."""
    least, greatest = top, bottom
    for first in range(0, limit, SIZE):
        order, _units, _scaled, _weight, _places, _bracket, chosen = asked_tile(
            source, source_places, first, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
            BINS, SIZE, DEVICE,
        )  # fmt: skip
        chosen = chosen & (order >= bottom) & (order <= top)
        least = tl.minimum(least, tl.min(tl.where(chosen, order, top)))
        greatest = tl.maximum(greatest, tl.max(tl.where(chosen, order, bottom)))
    return least, greatest


@triton.jit
def narrowed(source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
             goal, by_mass, bottom, top, SHIFT: tl.constexpr, BINS: tl.constexpr, SIZE: tl.constexpr,
             WAYS: tl.constexpr, DEVICE: tl.constexpr):  # fmt: skip
    """The least y in ``bottom`` .. ``top`` such that the ids of ``part_of`` whose orders, less their ``SHIFT`` low
    bits, are at most y number ``goal``, or hold so many units (``by_mass``); ``top`` if there is none."""
    way = tl.arange(0, WAYS)
    while bottom < top:
        step = (top - bottom) // WAYS + 1
        pivots = tl.minimum(bottom + (way + 1).to(tl.int64) * step - 1, top)
        until = ((pivots + 1) << SHIFT) - 1
        reached = tl.zeros((WAYS,), tl.int64)
        for first in range(0, limit, SIZE):
            order, units, _scaled, _weight, _places, _bracket, chosen = asked_tile(
                source, source_places, first, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
                BINS, SIZE, DEVICE,
            )  # fmt: skip
            amount = tl.where(chosen, tl.where(by_mass, units, 1), 0)
            reached += tl.sum(tl.where(order[None, :] <= until[:, None], amount[None, :], 0), 1)
        short = tl.sum((reached.to(tl.float64) < goal).to(tl.int32))
        bottom = tl.minimum(bottom + short.to(tl.int64) * step, top)
        top = tl.minimum(bottom + step - 1, top)
    return top


@triton.jit
def least_order(source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
                goal, by_mass, BINS: tl.constexpr, SIZE: tl.constexpr, WAYS: tl.constexpr,
                DEVICE: tl.constexpr):  # fmt: skip
    """The least order y such that the ids of ``part_of`` with orders up to y number ``goal``, or hold so many units
    (``by_mass``); the greatest order if none does. Finds the logit first, then the id among those that share it."""
    bottom = tl.full((), 0, tl.int64)
    top = tl.full((), 9007199254740991, tl.int64)
    bottom, top = order_range(
        source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of, bottom, top,
        BINS, SIZE, DEVICE,
    )  # fmt: skip
    level = narrowed(
        source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of, goal, by_mass,
        bottom >> 21, top >> 21, 21, BINS, SIZE, WAYS, DEVICE,
    )  # fmt: skip
    bottom, top = order_range(
        source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
        level << 21, (level << 21) + 2097151, BINS, SIZE, DEVICE,
    )  # fmt: skip
    return narrowed(
        source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of, goal, by_mass,
        bottom, top, 0, BINS, SIZE, WAYS, DEVICE,
    )  # fmt: skip


@triton.jit
def mass_until(source, source_places, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of, until,
               BINS: tl.constexpr, SIZE: tl.constexpr, DEVICE: tl.constexpr):  # fmt: skip
    """Units of the ids of ``part_of`` with orders up to ``until``."""
    total = tl.zeros((SIZE,), tl.int64)
    for first in range(0, limit, SIZE):
        order, units, _scaled, _weight, _places, _bracket, chosen = asked_tile(
            source, source_places, first, limit, from_row, peak, low, heat, start, end, k_bin, by_p, part_of,
            BINS, SIZE, DEVICE,
        )  # fmt: skip
        total += tl.where(chosen & (order <= until), units, 0)
    return tl.sum(total)
