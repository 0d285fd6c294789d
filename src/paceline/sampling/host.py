"""Draws on the CPU, one row at a time, looking only at ids that can win (spec 13.5, 13.6). Same tokens as together.

Knows no tensor: logits are arrays, and what a row gets never depends on the rows beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..core.request import GREEDY_TEMPERATURE
from .chains import chain_survivors, crosses, top_choices
from .filters import HostRow, survivors
from .noise import (
    INVERSE_CDF,
    LEAST_GUMBEL,
    MOST_GUMBEL,
    Array,
    host_block_words,
    host_exponential,
    host_gumbel,
    host_uniform,
    host_words,
)
from .params import DrawParams, FilterChain
from .tone import RowTone, Tone, host_shift
from .units import NEGLIGIBLE, host_place, host_units

#: Room for rounding when ids are sorted out by approximate scores, beside that of the scaled logits themselves.
_SLACK = 1e-4
#: Scaled logits beyond this are rounded too coarsely for that.
_COARSE = 1e5
#: With so few ids nothing is sorted out.
_EXACT = 64
#: Ids with a map's value so far below the largest are neither drawn nor counted.
_OUT_OF_REACH = MOST_GUMBEL - LEAST_GUMBEL + 2.0


@dataclass(frozen=True)
class _Columns:
    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    seed: list[int]
    step: list[int]


@np.errstate(over="ignore", invalid="ignore")
def draw_host(logits: Array, ids: Array | None, params: DrawParams) -> tuple[Array, Array]:
    """Places [M] drawn in ``logits`` [M, N] and which rows are bad [M]; ``ids`` [N] int64: the places' full ids."""
    places = logits.argmax(1)  # the first of equal values, and NaN before all others
    bad = ~np.isfinite(logits[np.arange(len(places)), places])
    places[bad] = 0
    if params.all_greedy:
        return places, bad
    columns = _Columns(*(getattr(params, name).tolist() for name in _Columns.__dataclass_fields__))
    few: list[tuple[int, HostRow, Array]] = []
    for m, temperature in enumerate(columns.temperature):
        chain = None if params.chains is None else params.chains[m]
        if temperature <= GREEDY_TEMPERATURE or bad[m] or (chain is None and columns.top_k[m] == 1):
            continue
        if chain is None:
            row, allowed = _filtered(logits[m], places[m], columns, m)
        else:
            row, allowed = _chained(logits[m], places[m], chain, columns, m)
        if params.coupling == "inverse_cdf":
            places[m] = _inverse_cdf(row, allowed, columns.seed[m], columns.step[m])
        elif ids is not None and allowed is None:
            few.append((m, row, np.flatnonzero(_near(row, row.scaled))))
        elif allowed is None:
            places[m] = _draw_any(row, columns.seed[m], columns.step[m])
        elif ids is None and allowed.size > row.logits.size // 4:  # so many words come cheaper by whole blocks
            places[m] = _draw_any(_only(row, allowed), columns.seed[m], columns.step[m])
        else:
            few.append((m, row, allowed))
    _draw_among(places, few, ids, columns)
    return places, bad


def _filtered(logits: Array, top: int, columns: _Columns, m: int) -> tuple[HostRow, Array | None]:
    """Row m and the places that its columns leave (``None``: all)."""
    row = _row(logits, columns.temperature[m], top)
    top_k, top_p, min_p = columns.top_k[m], columns.top_p[m], columns.min_p[m]
    if 0 < top_k < logits.size or 0 < top_p < 1 or min_p > 0:
        return row, survivors(row, top_k, top_p, min_p)
    return row, None


def _chained(logits: Array, top: int, chain: FilterChain, columns: _Columns, m: int) -> tuple[HostRow, Array | None]:
    """Row m and the places that its chain leaves (``None``: all). The row's peak is the largest of those."""
    temperature = columns.temperature[m]
    crossed = crosses(chain, columns.seed[m], columns.step[m])
    tone = None if chain.tone is None else _fit(chain.tone, logits, top, temperature)
    if not chain.acts(crossed):
        return _row(logits, temperature, top) if tone is None else _toned(logits, tone, top)[0], None
    if chain.temperature_last:
        basis = HostRow.untempered(logits, top)
    else:
        basis = _row(logits, temperature, top) if tone is None else _toned(logits, tone, top)[0]
    if tone is None and not chain.acts(False):
        dropped = top_choices(basis, None, chain)
        return _without(_row(logits, temperature, top) if chain.temperature_last else basis, dropped), None
    allowed = chain_survivors(basis, chain, crossed)
    top = int(allowed[logits[allowed].argmax()])
    if tone is not None:
        return _toned(logits, tone, top, allowed)
    if chain.temperature_last:
        return _row(logits, temperature, top), allowed
    return replace(basis, peak=float(basis.scaled[top])), allowed


def _fit(tone: Tone, logits: Array, top: int, temperature: float) -> RowTone:
    row = HostRow.untempered(logits, top)
    counted = row.within(NEGLIGIBLE + row.rounding)
    shift = host_shift(tone, row.gaps(counted), row.weights(counted))
    return RowTone(tone, temperature, row.peak, shift)


def _toned(logits: Array, tone: RowTone, top: int, allowed: Array | None = None) -> tuple[HostRow, Array]:
    """The row mapped by ``tone``, and those of the ``allowed`` places that are in reach of ``top``; others get -inf."""
    if allowed is None:
        near = tone.within(logits, float(logits[top]), _OUT_OF_REACH)
    else:
        near = allowed[tone.within(logits[allowed], float(logits[top]), _OUT_OF_REACH)]
    scaled = np.full_like(logits, -np.inf)
    scaled[near] = tone.scores(logits[near])
    return HostRow(logits, scaled, float(scaled[top])), near


def _inverse_cdf(row: HostRow, allowed: Array | None, seed: int, step: int) -> int:
    """The first place at which the sum of probabilities, in ascending order, exceeds one uniform number (13.6)."""
    places = row.within(NEGLIGIBLE + row.rounding) if allowed is None else allowed
    everywhere = allowed is None and places.size > row.scaled.size // 2  # cheaper than to gather
    weights = row.relative(row.scaled) if everywhere else row.weights(places)
    place = host_place(host_units(weights), host_uniform(seed, step, INVERSE_CDF))
    return place if everywhere else int(places[place])


def _row(logits: Array, temperature: float, top: int) -> HostRow:
    with np.errstate(over="ignore"):
        scaled = logits / logits.dtype.type(temperature)
    return HostRow(logits, scaled, float(scaled[top]))


def _without(row: HostRow, dropped: Array) -> HostRow:
    """The row with ``dropped`` ids banned; the others stay what they are."""
    scaled = row.scaled.copy()
    scaled[dropped] = -np.inf
    return replace(row, scaled=scaled, peak=float(scaled.max()))


def _only(row: HostRow, allowed: Array) -> HostRow:
    """The row with all other ids banned."""
    scaled = np.full_like(row.scaled, -np.inf)
    scaled[allowed] = row.scaled[allowed]
    return replace(row, scaled=scaled)


def _near(row: HostRow, scaled: Array) -> Array:
    """Mask of ``scaled``: high enough to win with the best noise against the largest one with the worst."""
    mask: Array = scaled >= row.peak - (MOST_GUMBEL - LEAST_GUMBEL) - row.rounding
    return mask


def _draw_among(places: Array, rows: list[tuple[int, HostRow, Array]], ids: Array | None, columns: _Columns) -> None:
    """Set ``places[m]`` for each (m, row, candidates ascending); one call makes the words of all."""
    if not rows:
        return
    counts = [candidates.size for _, _, candidates in rows]
    chosen = np.concatenate([candidates for _, _, candidates in rows])
    seeds = np.repeat(np.array([columns.seed[m] for m, _, _ in rows], np.int64), counts)
    steps = np.repeat(np.array([columns.step[m] for m, _, _ in rows], np.int64), counts)
    words = host_words(seeds, steps, chosen if ids is None else ids[chosen])
    start = 0
    for m, row, candidates in rows:
        stop = start + candidates.size
        places[m] = candidates[_race(row, row.scaled[candidates], words[start:stop])]
        start = stop


def _draw_any(row: HostRow, seed: int, step: int) -> int:
    """Draw among all ids. Words come four at a time, and only for blocks of ids in which one can win."""
    scaled = row.scaled
    if scaled.size % 4:
        scaled = np.append(scaled, np.full(-scaled.size % 4, -np.inf, scaled.dtype))
    blocks = np.flatnonzero(_near(row, scaled).view(np.uint32))  # one word is the mask of a block
    if blocks.size < scaled.size // 4:
        scaled = np.take(scaled.reshape(-1, 4), blocks, axis=0).reshape(-1)
    words = host_block_words(seed, step, blocks.astype(np.uint64)).reshape(-1)
    place = _race(row, scaled, words)
    return int(blocks[place // 4]) * 4 + place % 4


def _race(row: HostRow, scaled: Array, words: Array) -> int:
    """First place of the largest ``scaled + noise``; logarithms are computed only where they can matter.

    The winner has about the least ``E / weight``. As ``u <= E``, no id whose ``u / weight`` is clearly above the
    ``E / weight`` of some other id can win.
    """
    if scaled.size <= _EXACT or abs(row.peak) > _COARSE:
        return int((scaled + host_gumbel(words)).argmax())
    with np.errstate(divide="ignore", over="ignore"):
        race = words.astype(np.float32)
        race += np.float32(0.5)
        race /= np.exp(scaled - scaled.dtype.type(row.peak), dtype=np.float32)
    best = int(race.argmin())
    exponential = float(host_exponential(words[best : best + 1])[0])
    ahead = float(scaled[best]) - row.peak
    bound = exponential * 2.0**32 * math.exp(row.rounding + _SLACK - ahead)
    places = np.flatnonzero(race <= bound)
    scores = scaled[places] + host_gumbel(words[places])
    return int(places[scores.argmax()])
