"""The depths of greatest value for one round, given what each proposal is worth and what a round costs (spec 11.5).

No memory and no clock: equal inputs give equal depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..core.costs import CostTable


class Choice(NamedTuple):
    """Depths per row, tokens expected of the round, and its cost in seconds."""

    depths: list[int]
    tokens: float
    cost: float


class RoundCosts:
    """Costs of rounds of ``rows`` rows around one context length; each figure is looked up once, when it is needed."""

    def __init__(self, costs: CostTable, rows: int, context: int) -> None:
        self._costs, self._rows, self._context = costs, rows, context
        self.plain = costs.plain(rows, context)
        self._verify = [self.plain]
        self._drafts: dict[int, list[float]] = {}
        self.free = not any(costs.draft_grid.values)

    def verify(self, proposals: int) -> list[float]:
        """Target cost by number of proposals, at least up to ``proposals``. The list grows in place."""
        known = len(self._verify)
        if known <= proposals:
            more = range(self._rows + known, self._rows + max(proposals, 2 * known) + 1)
            self._verify += [self._costs.verify(self._rows, flat, self._context) for flat in more]
        return self._verify

    def drafts(self, depth: int) -> list[float]:
        """Draft cost at ``depth`` by number of rows that draft."""
        if depth not in self._drafts:
            counts = range(self._rows + 1)
            self._drafts[depth] = [self._costs.draft(count, depth, self._context) for count in counts]
        return self._drafts[depth]

    def of(self, depths: Sequence[int]) -> float:
        """Cost of a round of these depths."""
        proposals, deepest = sum(depths), max(depths, default=0)
        draft = self.drafts(deepest)[sum(depth > 0 for depth in depths)] if deepest else 0.0
        return self.verify(proposals)[proposals] + draft


#: A proposal to take: minus the chance that it is right and reached, its place in the window, its row.
_Offer = tuple[float, int, int]


def choose(chances: Sequence[Sequence[float]], costs: RoundCosts) -> Choice:
    """The depths of most expected tokens per second; ties go to the smaller window.

    ``chances``: per row the chance that its first j proposals are all right, j = 1 .. its largest depth; never rising.
    For a given greatest depth, proposals in order of falling chance are the best of their number, so the best window is
    some first part of that order. Exact where the draft cost does not depend on how many rows draft.
    """
    offers = sorted((-chance, place, row) for row, own in enumerate(chances) for place, chance in enumerate(own, 1))
    best = _Search(len(chances), costs)
    deepest = max(map(len, chances), default=0)
    totals = _totals(chances, deepest)
    for depth in range(deepest, deepest - 1 if costs.free else 0, -1):
        best.try_depth(offers, depth, totals[depth])
    depths = [0] * len(chances)
    if best.count:
        taken = (offer for offer in offers if offer[1] <= best.depth)
        for _, (_, _, row) in zip(range(best.count), taken, strict=False):
            depths[row] += 1
    return Choice(depths, best.tokens, best.cost)


def _totals(chances: Sequence[Sequence[float]], deepest: int) -> list[float]:
    """Tokens expected if every row went to depth D, for D = 0 .. ``deepest``."""
    gains = [0.0] * (deepest + 1)
    for own in chances:
        for place, chance in enumerate(own, 1):
            gains[place] += chance
    gains[0] = float(len(chances))
    return list(accumulate(gains))


class _Search:
    """The best window so far: the first ``count`` offers that are no deeper than ``depth``."""

    def __init__(self, rows: int, costs: RoundCosts) -> None:
        self._rows, self._costs = rows, costs
        self.depth = self.count = 0
        self.tokens, self.cost = float(rows), costs.plain
        self._value = self.tokens / self.cost

    def try_depth(self, offers: Sequence[_Offer], depth: int, most: float) -> None:
        """Take offers one by one and keep the best first part. ``most``: tokens if all of them are taken."""
        verify, drafts = self._costs.verify(1), self._costs.drafts(depth)
        tokens, drafting, count, value = float(self._rows), 0, 0, self._value
        known = len(verify)
        for chance, place, _ in offers:
            if place > depth:
                continue
            count += 1
            tokens -= chance
            if place == 1:
                drafting += 1
            if count >= known:
                known = len(self._costs.verify(count))
            cost = verify[count] + drafts[drafting]
            goal = value * cost
            if tokens > goal or (tokens == goal and count < self.count):
                self.depth, self.count, self.tokens, self.cost = depth, count, tokens, cost
                self._value = value = tokens / cost
            if most <= goal:  # whatever follows costs no less
                return
