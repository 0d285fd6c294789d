"""Maps of log-probabilities that are used in place of a temperature (spec 13.1): the tone curve, and highlight and toe.

Both are monotone: no map moves one id past another. Everything is computed in float64. Knows no filter and no noise.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from ..core.params import HlgSettings
from .noise import Array
from .units import UNIT, gaps_and_weights, host_mean_gap, host_reach, host_sum, host_units, log, mean_gap, units_of

#: Room for rounding, in nats and relative, when ids are left out because they are too far below.
_ROOM, _RELATIVE = 1e-2, 1e-6

Origin = Literal["sum", "top", "entropy", "median"]


@dataclass(frozen=True)
class Curve:
    """Piecewise cubic through control points. ``pieces``: one more than points, (start, c0, c1, c2, c3) with the value
    c0 + c1 t + c2 t^2 + c3 t^3 at start + t; the first and the last are straight."""

    inputs: tuple[float, ...]
    pieces: tuple[tuple[float, float, float, float, float], ...]
    origin: Origin = "sum"  # inputs are log-probabilities

    def apply(self, inputs: Any, temperature: Any, xp: Any) -> Any:
        """The map of float64 ``inputs``, an array or tensor of ``xp``; the temperature is not used."""
        like = {"device": inputs.device} if xp is torch else {}
        table = xp.asarray(self.pieces, dtype=xp.float64, **like)
        points = xp.asarray(self.inputs, dtype=xp.float64, **like)
        place = xp.searchsorted(points, inputs, side="right")
        start, c0, c1, c2, c3 = (table[:, column][place] for column in range(5))
        t = inputs - start
        straight = c0 + t * c1
        bend = t * t * (c2 + t * c3)
        return xp.where((c2 == 0) & (c3 == 0), straight, straight + bend)

    def least_input(self, top: float, distance: float, temperature: float) -> float:
        """An input below which the map is more than ``distance`` below its value at ``top``."""
        need = float(self.apply(np.array([top]), temperature, np)[0]) - distance
        _, lowest, slope, _, _ = self.pieces[0]
        if need < lowest:
            return self.inputs[0] - (lowest - need) / slope
        values = [piece[1] for piece in self.pieces[1:]]
        return self.inputs[max(0, bisect.bisect_right(values, need) - 1)]


@dataclass(frozen=True)
class Bend:
    """Highlight and toe: straight within ``linear`` nats of the origin, bent beyond; gain 1 / temperature.

    With x the distance from the origin, k = ``linear``, a = ``shoulder`` and b = ``toe``: the value is x / T for
    -k <= x <= k, (k + log(1 + a (x - k)) / a) / T above, and -(k + e + b e^2 / 2) / T with e = -k - x below. Values and
    slopes meet at both ends; the slope falls as 1 / (1 + a (x - k)) above and grows as 1 + b e below.
    """

    origin: Origin
    linear: float
    toe: float
    shoulder: float

    def apply(self, inputs: Any, temperature: Any, xp: Any) -> Any:
        """The map of float64 ``inputs``, an array or tensor of ``xp``; ``temperature`` a number or one per row."""
        high = xp.clip(inputs - self.linear, 0.0, None)
        low = xp.clip(-self.linear - inputs, 0.0, None)
        if self.shoulder > 0:
            high = _log1p(high * self.shoulder, xp) / self.shoulder
        if self.toe > 0:
            low = low * (1.0 + low * (0.5 * self.toe))
        return (xp.clip(inputs, -self.linear, self.linear) + high - low) / temperature

    def least_input(self, top: float, distance: float, temperature: float) -> float:
        """An input below which the map is more than ``distance`` below its value at ``top``."""
        need = float(self.apply(np.array([top]), 1.0, np)[0]) - distance * temperature
        excess = -self.linear - need
        if excess <= 0 or self.toe == 0:
            return need  # the map never exceeds its input
        return -self.linear - (math.sqrt(1.0 + 2.0 * self.toe * excess) - 1.0) / self.toe


Tone = Curve | Bend


def _log1p(values: Any, xp: Any) -> Any:
    if xp is torch and values.device.type == "cpu":
        return torch.from_numpy(np.log1p(values.numpy()))
    return xp.log1p(values)


@lru_cache(maxsize=256)
def curve_of(points: tuple[tuple[float, float], ...]) -> Curve:
    """The monotone cubic interpolation of Fritsch and Carlson (SIAM J. Numer. Anal. 17, 1980, 238-246) through control
    points that rise in both coordinates; straight beyond them, with a slope of at least 1 below the first."""
    x, y = zip(*points, strict=True)
    slopes = _slopes(x, y)
    pieces = [(x[0], y[0], max(1.0, slopes[0]), 0.0, 0.0)]
    for k in range(len(x) - 1):
        width = x[k + 1] - x[k]
        secant = (y[k + 1] - y[k]) / width
        quadratic = (3.0 * secant - 2.0 * slopes[k] - slopes[k + 1]) / width
        cubic = (slopes[k] + slopes[k + 1] - 2.0 * secant) / (width * width)
        pieces.append((x[k], y[k], slopes[k], quadratic, cubic))
    pieces.append((x[-1], y[-1], slopes[-1], 0.0, 0.0))
    return Curve(x, tuple(pieces))


def _slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Slopes at the points: means of the secants, cut back so that alpha^2 + beta^2 <= 9 on every interval."""
    secants = [(y[k + 1] - y[k]) / (x[k + 1] - x[k]) for k in range(len(x) - 1)]
    means = [(left + right) / 2 for left, right in itertools.pairwise(secants)]
    slopes = [secants[0], *means, secants[-1]]
    for k, secant in enumerate(secants):
        if secant == 0:
            slopes[k] = slopes[k + 1] = 0.0
    for k, secant in enumerate(secants):
        if secant > 0:
            length = math.hypot(slopes[k], slopes[k + 1]) / secant
            if length > 3.0:
                slopes[k] *= 3.0 / length
                slopes[k + 1] *= 3.0 / length
    return slopes


def bend_of(settings: HlgSettings) -> Bend | None:
    """The map of ``settings``; ``None`` if nothing is bent, where it is a plain temperature."""
    if not settings.rolls_off:
        return None
    return Bend(settings.pivot, settings.linear, settings.toe, settings.shoulder)


@dataclass(frozen=True)
class RowTone:
    """A map fitted to one row: inputs are logits - ``peak`` + ``shift``."""

    tone: Tone
    temperature: float
    peak: float
    shift: float

    def scores(self, logits: Array) -> Array:
        """The map of some of the row's logits, in their type."""
        inputs = logits.astype(np.float64) - self.peak + self.shift
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Array = self.tone.apply(inputs, self.temperature, np).astype(logits.dtype)
        return scores

    def within(self, logits: Array, top: float, distance: float) -> Array:
        """Places of all ``logits`` whose score is at most ``distance`` below that of a logit ``top``, and some more."""
        least = self.tone.least_input(top - self.peak + self.shift, distance + _ROOM, self.temperature)
        room = _ROOM + _RELATIVE * (abs(least) + abs(self.peak) + abs(self.shift))
        return np.flatnonzero(logits >= logits.dtype.type(least - self.shift + self.peak - room))


def host_shift(tone: Tone, gaps: Array, weights: Array) -> float:
    """What is added to logit - peak to make the input of ``tone``. ``gaps``, ``weights``: the ids that count, [n]."""
    if tone.origin == "top":
        return 0.0
    units = host_units(weights)
    if tone.origin == "sum":
        return float(-np.log(host_sum(units) / UNIT))
    if tone.origin == "entropy":
        return host_mean_gap(gaps, units)
    return host_reach(gaps, units, 0.5 * float(host_sum(units)))


def tone_scores(tone: Tone, logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """The map of whole rows on any device: ``logits`` [M, N] without NaN, ``temperature`` [M, 1] -> [M, N]."""
    inputs = logits.double() - logits.amax(-1, keepdim=True).double() + _shift(tone, logits)
    if logits.device.type == "cpu":
        with np.errstate(over="ignore", invalid="ignore"):
            mapped = torch.from_numpy(np.asarray(tone.apply(inputs.numpy(), temperature.double().numpy(), np)))
    else:
        mapped = tone.apply(inputs, temperature.double(), torch)
    return mapped.to(logits.dtype)


def _shift(tone: Tone, logits: torch.Tensor) -> torch.Tensor:
    """:func:`host_shift` of each row: [M, N] -> [M, 1]."""
    gaps, weights = gaps_and_weights(logits)
    units = units_of(weights)
    total = units.sum(-1, keepdim=True)
    if tone.origin == "sum":
        return -log(total / UNIT)
    if tone.origin == "entropy":
        return mean_gap(gaps, units)
    if tone.origin == "top":
        return torch.zeros_like(total)
    ordered, order = torch.sort(gaps, dim=-1, stable=True)
    reached = (units.gather(-1, order).cumsum(-1) < 0.5 * total).sum(-1, keepdim=True)
    return ordered.gather(-1, reached).double()
