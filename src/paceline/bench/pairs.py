"""Speed-ups from interleaved runs: the order of the runs, ratios of pairs, bootstrap bounds. Plain arithmetic.

Every repeat of a prompt runs all arms one after the other, so that a pair of one repeat saw the same machine.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Paired seconds per token: prompt -> repeat -> (base, other).
Pairs = Sequence[Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Bound:
    """A speed-up and its 95 percent bootstrap bounds, over ``prompts`` prompts."""

    value: float
    low: float
    high: float
    prompts: int


def interleaved(arms: Sequence[T], repeat: int) -> list[T]:
    """The arms in the order of one repeat: rotated, and every other time backwards.

    No arm always comes first or always behind the same other one, and a drift of the machine cancels.
    """
    if not arms:
        return []
    shift = (repeat // 2) % len(arms)
    turned = [*arms[shift:], *arms[:shift]]
    return turned[::-1] if repeat % 2 else turned


def prompt_speedup(pairs: Sequence[tuple[float, float]]) -> float:
    """Median over the repeats of base / other: above 1 the other is faster."""
    return statistics.median(base / other for base, other in pairs)


def speedup(pairs: Pairs, *, draws: int = 2000, seed: int = 0) -> Bound | None:
    """Geometric mean over the prompts of :func:`prompt_speedup`; ``None`` without prompts.

    Bounds by a two-level percentile bootstrap (Efron and Tibshirani 1993, chapters 8 and 13): prompts are drawn with
    replacement, then the repeats of each drawn prompt, pairs staying together.
    """
    if not pairs:
        return None
    generator = random.Random(seed)
    logs = [[math.log(base / other) for base, other in entry] for entry in pairs]
    sampled = sorted(_resampled(logs, generator) for _ in range(draws))
    value = math.exp(statistics.fmean(statistics.median(entry) for entry in logs))
    return Bound(value, math.exp(quantile(sampled, 0.025)), math.exp(quantile(sampled, 0.975)), len(pairs))


def _resampled(logs: Sequence[Sequence[float]], generator: random.Random) -> float:
    chosen = generator.choices(logs, k=len(logs))
    return statistics.fmean(statistics.median(generator.choices(entry, k=len(entry))) for entry in chosen)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics of a sorted sequence."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
