"""Small covering designs: few combinations in which every pair of values of two factors occurs. Deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

_Pair = tuple[tuple[str, int], tuple[str, int]]


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Combinations (factor -> value) that cover all pairs of values; at least two factors, all with values.

    Greedy: each combination starts from an uncovered pair and gives every other factor the value that covers most.
    """
    if len(factors) < 2 or not all(factors.values()):
        raise ValueError("pairwise needs two factors or more, each with at least one value")
    sizes = {name: len(values) for name, values in factors.items()}
    uncovered = _all_pairs(sizes)
    rows: list[dict[str, Any]] = []
    while uncovered:
        chosen = _combination(sizes, uncovered)
        for pair in _pairs_of(chosen):
            uncovered.pop(pair, None)
        rows.append({name: factors[name][chosen[name]] for name in factors})
    return rows


def full_grid(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last factor changing fastest."""
    return [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]


def _all_pairs(sizes: Mapping[str, int]) -> dict[_Pair, None]:
    """All pairs, in an order that does not depend on hashing."""
    return {
        ((a, i), (b, j)): None
        for a, b in combinations(sorted(sizes), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }


def _pairs_of(chosen: Mapping[str, int]) -> list[_Pair]:
    return [((a, chosen[a]), (b, chosen[b])) for a, b in combinations(sorted(chosen), 2)]


def _combination(sizes: Mapping[str, int], uncovered: Mapping[_Pair, None]) -> dict[str, int]:
    chosen = dict(next(iter(uncovered)))
    for name in sorted(set(sizes) - set(chosen), key=lambda factor: (-sizes[factor], factor)):
        gains = [sum(pair in uncovered for pair in _pairs_with(name, i, chosen)) for i in range(sizes[name])]
        best = max(gains)
        tied = [i for i, gain in enumerate(gains) if gain == best]
        chosen[name] = tied[len(uncovered) % len(tied)]
    return chosen


def _pairs_with(name: str, value: int, chosen: Mapping[str, int]) -> list[_Pair]:
    mine = (name, value)
    return [(mine, other) if mine < other else (other, mine) for other in chosen.items()]
