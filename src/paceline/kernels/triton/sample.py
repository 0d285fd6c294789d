"""Draws without filters in one pass over the logits: argmax, or argmax of tempered logits plus keyed noise.

A row's vocabulary is shared by several programs; a second small kernel takes the best of their bests. Every comparison
is of exactly the scores the reference has, so nothing depends on how a row was split.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

import triton
import triton.language as tl

from .noise import (
    NONE,
    best_noisy,
    better,
    exact_gumbel,
    lane_best,
    margin_of,
    range_words,
    rough_gumbel,
    single,
    words_of,
)


@triton.jit
def owner_of(row, index, WIDTH: tl.constexpr, INDEXED: tl.constexpr):
    """Row of the columns that a row of logits belongs to, and its place in that row's window."""
    if INDEXED:
        return tl.load(index + row // WIDTH), row % WIDTH
    return row.to(tl.int64), row * 0


@triton.jit
def words_at(ids, key, now, first, places, count, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """Words of the ids at ``places`` [BLOCK] = ``first`` ..: of the listed ids, or of the places themselves."""
    if LISTED:
        return words_of(key, now, 0, tl.load(ids + places, mask=places < count, other=0).to(tl.int32))
    return range_words(key, now, first, BLOCK)


@triton.jit
def exact_score(base, ids, key, now, place, heat, LISTED: tl.constexpr):
    """The score of one place, as the reference has it."""
    only = place + tl.arange(0, 1)
    chosen = tl.load(ids + only).to(tl.int32) if LISTED else only
    x = tl.load(base + only).to(tl.float32)
    return tl.sum(single(x, heat) + exact_gumbel(words_of(key, now, 0, chosen)))


@triton.jit
def draw_kernel(
    logits,
    ids,
    index,
    temperature,
    seed,
    step,
    best_out,
    place_out,
    bad_out,
    stride,
    count,
    offset,
    per_program,
    WIDTH: tl.constexpr,
    INDEXED: tl.constexpr,
    LISTED: tl.constexpr,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Best score, its place, and whether something is not a number or +inf, of a part of one row: [M, parts] each.

    ``logits`` [M, count], ``ids`` [count] int64 if ``LISTED``. Columns are read at ``index[row // WIDTH]``, the step is
    ``step + offset + row % WIDTH``. ``GREEDY``: no row samples.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    owner, inside = owner_of(row, index, WIDTH, INDEXED)
    heat = tl.load(temperature + owner)
    key, now = tl.load(seed + owner), tl.load(step + owner) + offset + inside
    base = logits + row.to(tl.int64) * stride
    start = part * per_program
    end = tl.minimum(start + per_program, count)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    second = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.full((BLOCK,), NONE, tl.int32)
    odd = tl.zeros((BLOCK,), tl.int32)
    samples = heat > 1e-5
    for first in range(start, end, BLOCK):
        places = first + tl.arange(0, BLOCK)
        x = tl.load(base + places, mask=places < count, other=float("-inf")).to(tl.float32)
        odd |= ((x != x) | (x == float("inf"))).to(tl.int32)
        score = x
        if not GREEDY:  # noqa: SIM102  # a constant and a value of the device
            if samples:
                words = words_at(ids, key, now, first, places, count, LISTED, BLOCK)
                score = x / heat + rough_gumbel(words)
        top, second, where = lane_best(top, second, where, score, places)
    broken = tl.max(odd)
    best = tl.max(top)
    place = tl.min(tl.where(top == best, where, NONE))
    if not GREEDY:  # noqa: SIM102
        if samples & (best > float("-inf")) & (broken == 0):
            edge = best - margin_of(best)
            best = tl.full((), float("-inf"), tl.float32)
            place = tl.full((), NONE, tl.int32)
            if tl.max(second) >= edge:
                # two of one lane are too near to each other: take all tiles exactly
                for first in range(start, end, BLOCK):
                    places = first + tl.arange(0, BLOCK)
                    x = tl.load(base + places, mask=places < count, other=float("-inf")).to(tl.float32)
                    words = words_at(ids, key, now, first, places, count, LISTED, BLOCK)
                    best, place = best_noisy(best, place, single(x, heat), words, places)
            else:
                able = (top >= edge).to(tl.int32)
                left = tl.sum(able)
                while left > 0:
                    chosen = tl.min(tl.where(able > 0, where, NONE))
                    score = exact_score(base, ids, key, now, chosen, heat, LISTED)
                    best, place = better(best, place, score, chosen)
                    able = tl.where(where == chosen, 0, able)
                    left -= 1
    at = row * tl.num_programs(1) + part
    tl.store(best_out + at, best)
    tl.store(place_out + at, place)
    tl.store(bad_out + at, broken)


@triton.jit
def combine_kernel(best_in, place_in, bad_in, ids, tokens, bad, parts, LISTED: tl.constexpr, PARTS: tl.constexpr):
    """``tokens`` [M] int64 and ``bad`` [M] int8 from the parts of each row. A bad row gets place 0."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    held = part < parts
    scores = tl.load(best_in + row * parts + part, mask=held, other=float("-inf"))
    places = tl.load(place_in + row * parts + part, mask=held, other=NONE)
    broken = tl.max(tl.load(bad_in + row * parts + part, mask=held, other=0))
    top = tl.max(scores)
    place = tl.min(tl.where(scores == top, places, NONE))
    is_bad = (broken > 0) | (top == float("-inf"))
    place = tl.where(is_bad, 0, place)
    token = tl.load(ids + place) if LISTED else place.to(tl.int64)
    tl.store(tokens + row, token)
    tl.store(bad + row, is_bad.to(tl.int8))
