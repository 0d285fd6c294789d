"""Follows how measured round times depart from a cost table, slowly, and corrects the table (spec 11.4).

Pure numbers: it is told the seconds of every round and reads no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..core.costs import CostTable

#: A plain step, the target's part of a round with proposals, the drafter's part of it.
Kind = Literal["plain", "verify", "draft"]
KINDS: tuple[Kind, ...] = ("plain", "verify", "draft")


class RoundShape(NamedTuple):
    """What a cost is looked up by: ``rows`` with ``flat`` token rows in all behind ``context`` tokens each; of these
    ``draft_rows`` were drafted for, ``depth`` deep (0 = none)."""

    rows: int
    flat: int
    context: float
    draft_rows: int = 0
    depth: int = 0


class Price(NamedTuple):
    """Seconds of a plain round of the same rows, of the window, and of the drafter."""

    plain: float
    verify: float
    draft: float

    @property
    def whole(self) -> float:
        return self.verify + self.draft


class PriceList:
    """Looks each shape up once: a look-up takes longer than all else that is done for a round."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._known: dict[RoundShape, Price] = {}

    def of(self, shape: RoundShape) -> Price:
        price = self._known.get(shape)
        if price is None:
            rows, flat, context, draft_rows, depth = shape
            costs = self._costs
            price = Price(
                costs.plain(rows, context), costs.verify(rows, flat, context), costs.draft(draft_rows, depth, context)
            )
            self._known[shape] = price
        return price


@dataclass(frozen=True)
class Pace:
    """How fast factors follow. An observation moves a factor by ``rate`` of what is missing, no further than ``step``
    allows: one that is a hundred times off moves it as little as one that is ``step`` off.

    ``bounds``: least and greatest factor. ``worth``: a new table is handed out once a factor has moved by this share
    since the last one, and after ``least`` rounds. ``fading``: how fast a kind that is not seen is held to be unknown.
    """

    rate: float = 0.05
    step: float = 0.25
    bounds: tuple[float, float] = (0.5, 2.0)
    worth: float = 0.05
    least: int = 16
    fading: float = 0.98


class CostCorrection:
    """Factors on the parts of a table. Kinds that have not been seen for a while move along with those that are: a
    machine that becomes slower does so for all, and a round that nobody runs must not look cheap or dear for that. Only
    a drafter's times do not move the target's."""

    def __init__(self, table: CostTable, pace: Pace | None = None) -> None:
        self._table = table
        self._prices = PriceList(table)
        self._pace = Pace() if pace is None else pace
        self._logs: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._known: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._handed: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._seen = 0

    @property
    def factors(self) -> dict[Kind, float]:
        """What each part of the table is multiplied by now."""
        return {kind: math.exp(value) for kind, value in self._logs.items()}

    def observe(self, kind: Kind, rows: int, flat: int, context: float, seconds: float) -> None:
        """A part of a round took ``seconds``. ``flat``: token rows in all; for a draft, its depth."""
        if kind == "draft":
            expected = self._table.draft(rows, flat, context)
        else:
            expected = self._table.verify(rows, flat if kind == "verify" else rows, context)
        self._follow({kind: expected}, seconds)

    def observe_round(self, shape: RoundShape, seconds: float) -> None:
        """A whole round took ``seconds``; what its parts took is not known apart and is shared out as expected."""
        price = self._prices.of(shape)
        if shape.flat <= shape.rows and not shape.draft_rows:
            self._follow({"plain": price.plain}, seconds)
        else:
            self._follow({"verify": price.verify, "draft": price.draft}, seconds)

    def current(self) -> CostTable:
        """The table as corrected now."""
        return self._table.scaled(**self.factors)

    def corrected(self) -> CostTable | None:
        """The corrected table, if it has moved enough since the last one that was handed out."""
        moved = max(abs(self._logs[kind] - self._handed[kind]) for kind in KINDS)
        if self._seen < self._pace.least or moved < math.log1p(self._pace.worth):
            return None
        self._handed = dict(self._logs)
        self._seen = 0
        return self.current()

    def _follow(self, expected: dict[Kind, float], seconds: float) -> None:
        """``expected``: uncorrected seconds of the parts that ran; all of them are off by the same share."""
        parts = {kind: cost for kind, cost in expected.items() if cost > 0}
        whole = sum(math.exp(self._logs[kind]) * cost for kind, cost in parts.items())
        if whole <= 0 or seconds <= 0:
            return
        pace = self._pace
        move = pace.rate * max(-pace.step, min(pace.step, math.log(seconds / whole)))
        low, high = (math.log(bound) for bound in pace.bounds)
        for kind in KINDS:
            if kind in parts:
                share = 1.0
            else:  # what a drafter takes says nothing of the target
                share = 0.0 if "draft" in parts and len(parts) == 1 else 1.0 - self._known[kind]
            self._logs[kind] = max(low, min(high, self._logs[kind] + share * move))
            seen = 1.0 if kind in parts else 0.0
            self._known[kind] += (1.0 - pace.fading) * (seen - self._known[kind])
        self._seen += 1
