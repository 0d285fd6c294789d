"""Device helpers of the sampler: keyed Gumbel noise (spec 13.4), exact weights, and the best id of a tile."""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

NONE = tl.constexpr(2**31 - 1)
"""Place of a best id where there is none yet."""


@triton.jit
def single(x, y):
    """x / y rounded as float32 division is everywhere else."""
    return tl.math.div_rn(x, y)


@triton.jit
def words_of(seed, step, domain, ids):
    """Philox words (uint32) of ``ids`` [n] int32 under the key ``seed`` int64, at ``step`` int64."""
    lane = ids & 3
    w0, w1, w2, w3 = lanes_of(seed, step, domain, ids >> 2)
    return tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))


@triton.jit
def lanes_of(seed, step, domain, blocks):
    """The four lanes of ``blocks`` [n] int32 (id // 4), each uint32 [n]."""
    zero = tl.zeros_like(blocks)
    counter = zero + (step & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
    return tl.philox(seed, blocks, counter, zero + domain, zero)


@triton.jit
def range_words(seed, step, first, COUNT: tl.constexpr):
    """Words [COUNT] of the ids from ``first`` (a multiple of 4) on; each block of four is computed once."""
    blocks = first // 4 + tl.arange(0, COUNT // 4)
    w0, w1, w2, w3 = lanes_of(seed, step, 0, blocks)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (COUNT,))


@triton.jit
def rough_gumbel(words):
    """Gumbel numbers within 2e-5 of the exact ones."""
    u = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333 + u * (0.25 + u * 0.2))))
    return -tl.log(tl.where(u < 0.0625, series, -tl.log(1.0 - u)))


@triton.jit
def exact_gumbel(words):
    """Gumbel numbers with each logarithm rounded once to float32, as the reference has them."""
    u = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    wide = u.to(tl.float64)
    # 1 - u is exact in float64 from 2**-20 on; below, three terms of -log(1 - u) are as good
    series = wide + wide * wide * 0.5 + wide * wide * wide * (1.0 / 3.0)
    exponential = tl.where(u < 9.5367431640625e-07, series, -tl.log(1.0 - wide)).to(tl.float32)
    return (-tl.log(exponential.to(tl.float64))).to(tl.float32)


@triton.jit
def weight_of(gap, DEVICE: tl.constexpr):
    """exp(-gap): on the device the very exponential that torch has there."""
    return libdevice.exp(-gap) if DEVICE else tl.exp(-gap)


@triton.jit
def units_of(weight):
    """``weight`` in whole units of 2**-33, half to even: int64."""
    scaled = weight * 8589934592.0
    down = tl.floor(scaled)
    whole = down.to(tl.int64)
    rest = scaled - down
    up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) == 1))
    return whole + up.to(tl.int64)


@triton.jit
def better(best, place, score, candidate):
    """The better of two (score, place) pairs; of equal scores the lower place."""
    wins = (score > best) | ((score == best) & (candidate < place))
    return tl.where(wins, score, best), tl.where(wins, candidate, place)


@triton.jit
def margin_of(top):
    """How far below ``top`` a rough score may be whose exact one is the best."""
    return tl.where(tl.abs(top) < 3e38, 1e-4 + tl.abs(top) * 1e-6, 0.0)


@triton.jit
def best_noisy(best, place, scaled, words, places):
    """Improve (best, place) by the tile: ``scaled`` [n] (-inf = not permitted) plus the noise of ``words`` [n].

    Rough noise tells which places can win at all; for these few the score is computed exactly.
    """
    rough = scaled + rough_gumbel(words)
    top = tl.max(rough)
    if top >= best - margin_of(best):
        top = tl.maximum(top, best)
        able = ((rough >= top - margin_of(top)) & (rough > float("-inf"))).to(tl.int32)
        left = tl.sum(able)
        while left > 0:
            chosen = tl.min(tl.where(able > 0, places, 2147483647))
            here = (places == chosen) & (able > 0)
            level = tl.sum(tl.where(here, scaled, 0.0))
            word = tl.sum(tl.where(here, words, 0).to(tl.int64)).to(tl.uint32)
            best, place = better(best, place, level + exact_gumbel(word), chosen)
            able = tl.where(here, 0, able)
            left -= 1
    return best, place


@triton.jit
def lane_best(best, second, place, score, places):
    """Per lane: the best score so far, its place, and the next best score."""
    wins = score > best
    second = tl.where(wins, best, tl.maximum(second, score))
    return tl.where(wins, score, best), second, tl.where(wins, places, place)
