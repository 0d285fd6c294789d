"""The depths of greatest value for one round, given what each proposal is worth and what a round costs (spec 11.5).

Pure functions: no memory, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.costs import CostTable

#: Contexts are taken together in buckets of this many tokens, so that costs can be looked up once for many decisions.
CONTEXT_BUCKET = 128


class Choice(NamedTuple):
    """Depths per row, tokens expected of the round, and its cost in seconds."""

    depths: list[int]
    tokens: float
    cost: float


class RoundCosts:
    """Costs of rounds of ``rows`` rows around one context length; every figure is looked up once."""

    def __init__(self, costs: CostTable, rows: int, context: int) -> None:
        self._costs, self._rows, self._context = costs, rows, context
        self.plain = costs.plain(rows, context)
        self.verify: list[float] = [self.plain]
        self._drafts: dict[int, list[float]] = {}
        self.draft_is_free = not any(costs.draft_grid.values)

    def reach(self, proposals: int) -> list[float]:
        """``verify`` by number of proposals, at least up to ``proposals``."""
        known = len(self.verify)
        if known <= proposals:
            more = range(self._rows + known, self._rows + max(proposals, 2 * known) + 1)
            self.verify += [self._costs.verify(self._rows, flat, self._context) for flat in more]
        return self.verify

    def drafts(self, depth: int) -> list[float]:
        """Draft cost at ``depth`` by number of rows that draft."""
        if depth not in self._drafts:
            rows = range(self._rows + 1)
            self._drafts[depth] = [self._costs.draft(count, depth, self._context) for count in rows]
        return self._drafts[depth]


def choose(chances: Sequence[Sequence[float]], costs: RoundCosts, price: float) -> Choice:
    """The depths for which expected tokens minus ``price`` (tokens per second) times cost is greatest.

    ``chances``: per row the chance that its first j proposals are all right, j = 1 .. its largest depth; falling. For
    a given greatest depth, proposals in order of falling chance are the best of their number, so some first part of
    that order is the best window. Ties go to the smaller window. Exact where the draft cost does not depend on how
    many rows draft; else the rows that draft are those of that first part.
    """
    offers = sorted((-chance, place, row) for row, own in enumerate(chances) for place, chance in enumerate(own, 1))
    best = _Search(len(chances), costs, price)
    deepest = max(map(len, chances), default=0)
    for depth in [deepest] if costs.draft_is_free else range(1, deepest + 1):
        best.try_depth([offer for offer in offers if offer[1] <= depth], depth)
    depths = [0] * len(chances)
    for _, _, row in best.taken:
        depths[row] += 1
    return Choice(depths, best.tokens, best.cost)


class _Search:
    """The best window so far."""

    def __init__(self, rows: int, costs: RoundCosts, price: float) -> None:
        self._rows, self._costs, self._price = rows, costs, price
        self.tokens, self.cost = float(rows), costs.plain
        self.value = self.tokens - price * self.cost
        self.taken: Sequence[tuple[float, int, int]] = ()

    def try_depth(self, offers: Sequence[tuple[float, int, int]], depth: int) -> None:
        """Take offers one by one and keep the best first part of them."""
        verify, drafts = self._costs.reach(len(offers)), self._costs.drafts(depth)
        most = self._rows - sum(offer[0] for offer in offers)
        tokens, drafting = float(self._rows), 0
        for count, (chance, place, _) in enumerate(offers, 1):
            tokens -= chance
            drafting += place == 1
            cost = verify[count] + drafts[drafting]
            value = tokens - self._price * cost
            if value > self.value or (value == self.value and count < len(self.taken)):
                self.tokens, self.cost, self.value, self.taken = tokens, cost, value, offers[:count]
            if most - self._price * cost <= self.value:  # whatever follows, costs do not fall
                return
