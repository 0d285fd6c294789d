"""One draw in plain Python, an id at a time, straight from spec 13.1 and 13.4 to 13.6: the oracle of every sampler.

Shares no code with ``paceline.sampling``. Scores keep the type of the logits; sums are exact (``math.fsum``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.params import HlgSettings, SamplingParams
from .noise import gumbel_noise, keyed_words

Logits = NDArray[np.floating[Any]]

#: Noise domains (spec 13.4).
CDF_DOMAIN, XTC_DOMAIN = 1, 2
#: Ids whose probability is less than this part of the largest one count for nothing.
_COUNTED = 2.0**-34


@dataclass(frozen=True)
class Case:
    """Parameters of one draw. ``hlg``: pivot, linear, toe, shoulder. ``spared``: ids that XTC leaves."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    step: int = 0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    filter_order: str = "temperature_first"
    curve: tuple[tuple[float, float], ...] | None = None
    hlg: tuple[str, float, float, float] | None = None
    spared: tuple[int, ...] = ()

    @classmethod
    def of(cls, params: SamplingParams, seed: int, step: int, spared: Sequence[int] = ()) -> Case:
        """The draw number ``step`` of a request."""
        hlg = params.hlg
        assert hlg is None or isinstance(hlg, HlgSettings)
        bent = None if hlg is None else (hlg.pivot, hlg.linear, hlg.toe, hlg.shoulder)
        names = [f.name for f in fields(cls) if f.name not in ("seed", "step", "hlg", "spared")]
        given = {name: getattr(params, name) for name in names} | {"top_k": max(0, params.top_k)}
        return cls(**given, seed=seed, step=step, hlg=bent, spared=tuple(spared))

    @property
    def options(self) -> SamplingParams:
        """The same as a request's options, without ``step`` and ``spared``."""
        hlg = None if self.hlg is None else HlgSettings(*self.hlg)  # type: ignore[arg-type]
        names = [f.name for f in fields(self) if f.name not in ("step", "hlg", "spared")]
        return SamplingParams(hlg=hlg, **{name: getattr(self, name) for name in names})


def single(value: float) -> float:
    """The number that a float32 column holds."""
    return float(np.float32(value))


def scaled_by(logits: Logits, temperature: float) -> Logits:
    with np.errstate(over="ignore"):
        return np.asarray(logits / logits.dtype.type(np.float32(temperature)))


def weights_of(values: Mapping[int, float]) -> dict[int, float]:
    """Probabilities relative to the largest one."""
    top = max(values.values())
    return {i: 1.0 if value == top else math.exp(float(value) - top) for i, value in values.items()}


def keep_top_k(values: dict[int, float], k: int, order: Sequence[int]) -> dict[int, float]:
    kept = [i for i in order if i in values][: k if k > 0 else None]
    return {i: values[i] for i in kept}


def keep_top_p(values: dict[int, float], p: float, order: Sequence[int]) -> dict[int, float]:
    if p >= 1:
        return values
    weight, before = weights_of(values), 0.0
    kept: dict[int, float] = {}
    need = p * math.fsum(weight.values())
    for i in order:
        if i in values and before < need:
            kept[i] = values[i]
            before += weight[i]
    return kept


def keep_typical(values: dict[int, float], p: float) -> dict[int, float]:
    """Ids whose surprise is nearest to the entropy, until they hold p."""
    if p >= 1:
        return values
    weight = {i: w for i, w in weights_of(values).items() if w > _COUNTED}
    total = math.fsum(weight.values())
    surprise = {i: math.log(total) - math.log(w) for i, w in weight.items()}
    entropy = math.fsum(w / total * surprise[i] for i, w in weight.items())
    distance = {i: abs(s - entropy) for i, s in surprise.items()}
    ranked, before, edge = sorted(distance, key=distance.__getitem__), 0.0, 0.0
    for i in ranked:
        if before >= p * total * (1 - 1e-12):
            break
        edge = distance[i]
        before += weight[i]
    return {i: values[i] for i in weight if distance[i] <= edge + 1e-9}


def exclude_top_choices(values: dict[int, float], case: Case, order: Sequence[int]) -> dict[int, float]:
    """XTC: of the ids above the threshold only the least likely one stays, at the steps where it acts."""
    if _uniform(case, XTC_DOMAIN) >= single(case.xtc_probability):
        return values
    weight = weights_of(values)
    total = math.fsum(weight.values())
    tall = [
        i for i in order if i in values and weight[i] >= single(case.xtc_threshold) * total and weight[i] > _COUNTED
    ]
    dropped = set(tall[:-1]) - set(case.spared)
    return {i: value for i, value in values.items() if i not in dropped}


def _uniform(case: Case, domain: int) -> float:
    """The number of this step and domain in (0, 1)."""
    return (float(keyed_words(case.seed, case.step, 1, domain)[0]) + 0.5) * 2.0**-32


def hermite(points: Sequence[tuple[float, float]], x: float) -> float:
    """Monotone cubic interpolation by Fritsch and Carlson in its textbook form, straight outside the points."""
    xs, ys = zip(*points, strict=True)
    delta = [(ys[k + 1] - ys[k]) / (xs[k + 1] - xs[k]) for k in range(len(xs) - 1)]
    m = [delta[0], *((a + b) / 2 for a, b in itertools.pairwise(delta)), delta[-1]]
    for k, d in enumerate(delta):
        if d == 0:
            m[k] = m[k + 1] = 0.0
    for k, d in enumerate(delta):
        if d != 0:
            alpha, beta = m[k] / d, m[k + 1] / d
            if alpha**2 + beta**2 > 9:
                tau = 3 / math.sqrt(alpha**2 + beta**2)
                m[k], m[k + 1] = tau * alpha * d, tau * beta * d
    if x < xs[0]:
        return float(ys[0] - max(1.0, m[0]) * (xs[0] - x))
    if x >= xs[-1]:
        return float(ys[-1] + m[-1] * (x - xs[-1]))
    k = max(j for j in range(len(delta)) if xs[j] <= x)
    h = xs[k + 1] - xs[k]
    t = (x - xs[k]) / h
    return float(
        (2 * t**3 - 3 * t**2 + 1) * ys[k]
        + (t**3 - 2 * t**2 + t) * h * m[k]
        + (-2 * t**3 + 3 * t**2) * ys[k + 1]
        + (t**3 - t**2) * h * m[k + 1]
    )


def bend(logp: Mapping[int, float], order: Sequence[int], case: Case) -> dict[int, float]:
    """Highlight and toe: log-probabilities around the pivot, times 1 / T."""
    assert case.hlg is not None
    pivot, linear, toe, shoulder = case.hlg
    p = {i: math.exp(value) for i, value in logp.items()}
    if pivot == "top":
        origin = max(logp.values())
    elif pivot == "entropy":
        origin = math.fsum(p[i] * value for i, value in logp.items() if p[i] > 0)
    else:
        ranked = [i for i in order if i in logp]
        sums = itertools.accumulate(p[i] for i in ranked)
        origin = logp[next(i for i, mass in zip(ranked, sums, strict=True) if mass >= 0.5 * (1 - 1e-12))]
    values = {}
    for i, value in logp.items():
        x = value - origin
        if x > linear:
            y = linear + (math.log1p(shoulder * (x - linear)) / shoulder if shoulder else x - linear)
        elif x < -linear:
            below = -linear - x
            y = -linear - below - (toe * below**2 / 2 if toe else 0.0)
        else:
            y = x
        values[i] = y / single(case.temperature)
    return values


def log_probabilities(logits: Logits) -> dict[int, float]:
    """Natural logarithms by id; banned ids are left out."""
    finite = [i for i in range(len(logits)) if logits[i] > -np.inf]
    top = float(logits.max())
    total = math.log(math.fsum(math.exp(float(logits[i]) - top) for i in finite))
    return {i: float(logits[i]) - top - total for i in finite}


def tempered(logits: Logits, case: Case, order: Sequence[int]) -> dict[int, Any]:
    """The scores that noise is added to, in the type of the logits."""
    if case.curve is not None:
        values = {i: hermite(case.curve, x) for i, x in log_probabilities(logits).items()}
    elif case.hlg is not None and (case.hlg[2] or case.hlg[3]):
        values = bend(log_probabilities(logits), order, case)
    else:
        return dict(enumerate(scaled_by(logits, case.temperature)))
    with np.errstate(over="ignore"):
        return {i: logits.dtype.type(value) for i, value in values.items()}


def permitted(logits: Logits, case: Case) -> dict[int, float]:
    """Scores of the ids that the filters leave, by the definition, with sums in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    scores = tempered(logits, case, order)
    if case.curve is not None:
        return scores
    top_k, top_p = (0, 1.0) if case.hlg is not None else (case.top_k, single(case.top_p))

    def keep_min_p(values: dict[int, float]) -> dict[int, float]:
        weight = weights_of(values)
        return {i: value for i, value in values.items() if weight[i] >= single(case.min_p)}

    if case.filter_order == "temperature_first":
        values = keep_min_p(keep_top_p(keep_top_k(scores, top_k, order), top_p, order))
        return exclude_top_choices(keep_typical(values, single(case.typical_p)), case, order)
    values = keep_min_p(keep_top_p(dict(enumerate(logits)), top_p, order))
    values = keep_top_k(exclude_top_choices(values, case, order), top_k, order)
    return {i: scores[i] for i in values if i in scores}


def plain_draw(logits: Logits, case: Case, coupling: str = "gumbel") -> int:
    """The token of one row by spec 13.1, 13.4, 13.5 and 13.6, one id at a time."""
    if case.temperature <= 1e-5:
        return min(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    values = permitted(logits, case)
    if coupling == "inverse_cdf":
        weight = weights_of(values)
        goal = _uniform(case, CDF_DOMAIN) * math.fsum(weight.values())
        ranked = sorted(values)
        sums = itertools.accumulate(weight[i] for i in ranked)
        return next(i for i, mass in zip(ranked, sums, strict=True) if mass > goal)
    noise = gumbel_noise(keyed_words(case.seed, case.step, len(logits)))
    scores = {i: value + noise[i] for i, value in values.items()}
    return min(scores, key=lambda i: (-float(scores[i]), i))
