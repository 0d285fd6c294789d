"""Which points of a round's cost are worth measuring, and the tables they make. Pure functions of numbers.

A cost is taken as a curve over the window for each number of rows, at the shortest context, plus what a longer context
adds to it. Legend: rows B, width = tokens of a row's window (1 + proposals), depth K.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..core.costs import FREE, CostTable, Grid
from .sweep import Point

CONTEXTS = (64, 512, 2048)
"""Context lengths, in tokens per row, at which costs are measured where model and pool hold them."""
_ALONE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 25, 33, 49, 65)
_TOGETHER = (1, 2, 3, 5, 9, 17, 33, 65)


@dataclass(frozen=True)
class Reach:
    """What a round may come to: ``rows``, the ``widest`` window when all rows draft, ``alone`` the widest one of a row
    that is by itself, ascending ``contexts``."""

    rows: int
    widest: int
    alone: int
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Points in the order of their weight; the first ``least`` are needed for any table at all. ``kept_back``: points
    that the others must predict."""

    points: tuple[Point, ...]
    kept_back: frozenset[Point]
    least: int


def contexts_within(longest: int) -> tuple[int, ...]:
    """Context lengths to measure where a row may have ``longest`` tokens before its window."""
    fitting = tuple(context for context in CONTEXTS if context <= longest)
    return fitting or (max(0, longest),)


def row_counts(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and ``most``."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return tuple(dict.fromkeys([*counts, most]))


def verify_plan(reach: Reach) -> Plan:
    """Points (rows, width, context) of verify windows: corners first, then the curve of one row, then the rest."""
    near, far = reach.contexts[0], reach.contexts[-1]
    rows, most, wide = row_counts(reach.rows), reach.rows, reach.widest
    kept_back = _kept_back(reach, rows)
    middle = [count for count in rows if 1 < count < most]
    alone = [width for width in _ALONE if width <= wide]
    together = [width for width in _TOGETHER if width < wide]
    corners = [(count, width, near) for count in dict.fromkeys((1, most)) for width in dict.fromkeys((1, wide))]
    points = [
        *corners,
        *((1, width, far) for width in (1, wide)),
        *kept_back,
        *((1, width, near) for width in alone),
        *((most, width, near) for width in together),
        *((count, width, near) for width in (1, wide, 2, 5) if width <= wide for count in middle),
        *((1, width, context) for context in reach.contexts for width in (1, wide)),
        *((1, width, near) for width in _ALONE if wide < width <= reach.alone),
        (1, reach.alone, near),
        *((most, 1, context) for context in reach.contexts),
        *((count, width, near) for count in middle for width in together),
        *((most, wide, context) for context in reach.contexts),
    ]
    return Plan(tuple(dict.fromkeys(points)), kept_back, len(corners))


def draft_plan(rows: int, depth: int, context: int) -> Plan:
    """Points (rows, depth, context) of drafts at one context."""
    halves = sorted({1, 2, (depth + 1) // 2, depth} & set(range(1, depth + 1)))
    corners = [(count, deep, context) for count in dict.fromkeys((1, rows)) for deep in dict.fromkeys((1, depth))]
    kept_back = frozenset({(_between(row_counts(rows)), (2 * depth + 1) // 3, context)}) if rows > 2 < depth else ()
    points = [
        *corners,
        *kept_back,
        *((1, deep, context) for deep in halves),
        *((count, deep, context) for count in row_counts(rows) for deep in dict.fromkeys((1, depth))),
        *((rows, deep, context) for deep in halves),
    ]
    return Plan(tuple(dict.fromkeys(points)), frozenset(kept_back), len(corners))


def _kept_back(reach: Reach, rows: Sequence[int]) -> frozenset[Point]:
    """Points between those that make the table: in the window, in the rows, in the context."""
    near, wide = reach.contexts[0], reach.widest
    found: set[Point] = set()
    if wide > 3:
        found.add((1, 2 * (wide // 3), near))
    if reach.rows > 2:
        found.add((_between(rows), max(1, wide // 2), near))
    if len(reach.contexts) > 1:
        found.add((1, wide, (near + reach.contexts[1]) // 2))
    return frozenset(found)


def _between(rows: Sequence[int]) -> int:
    """A number of rows halfway between two that are measured, if there is one."""
    for low, high in pairwise(rows[1:]):
        if high - low > 1:
            return (low + high) // 2
    return rows[0]


def cost_table(verify: Mapping[Point, float], draft: Mapping[Point, float], kept_back: Iterable[Point]) -> CostTable:
    """The table that measured points make. ``draft`` is empty for a drafter without a forward.

    Its ``error`` is the largest relative error at the points of ``verify`` and ``draft`` that are ``kept_back`` (of a
    draft together with the plain round it comes on top of); those that lie on the table's axes enter it once that is
    known.
    """
    apart = frozenset(kept_back)
    known = [{p: s for p, s in measured.items() if p not in apart} for measured in (verify, draft)]
    first = _table(known[0], known[1])
    errors = [abs(first.verify(b, b * w, c) / s - 1) for (b, w, c), s in verify.items() if (b, w, c) in apart]
    errors += [
        abs(first.draft(b, k, c) - s) / (s + first.plain(b, c)) for (b, k, c), s in draft.items() if (b, k, c) in apart
    ]
    whole = [{**near, **_on_axes(near, far)} for near, far in zip(known, (verify, draft), strict=True)]
    table = _table(whole[0], whole[1])
    return CostTable(table.plain_grid, table.verify_grid, table.draft_grid, max(errors, default=0.0))


def _on_axes(known: Mapping[Point, float], measured: Mapping[Point, float]) -> dict[Point, float]:
    """Measured points whose rows and context the known ones have too."""
    rows, contexts = {p[0] for p in known}, {p[2] for p in known}
    return {p: s for p, s in measured.items() if p[0] in rows and p[2] in contexts}


def undisturbed(seconds: Mapping[Point, float]) -> dict[Point, float]:
    """What is left when no point may cost more than one that asks for at least as much in every respect.

    Other work on a machine only ever adds time, so where that happens the cheaper measurement is the better one.
    """
    return {
        point: min(cost for other, cost in seconds.items() if all(a >= b for a, b in zip(other, point, strict=True)))
        for point in seconds
    }


def _table(verify: Mapping[Point, float], draft: Mapping[Point, float]) -> CostTable:
    surface = Surface(undisturbed(verify), windows=True)
    rows, contexts = surface.rows, surface.contexts
    flats = sorted({b * w for b, w, _ in verify})
    plain = [surface.at(b, 1, c) for b in rows for c in contexts]
    window = [surface.at_flat(b, flat, c) for b in rows for flat in flats for c in contexts]
    return CostTable(
        Grid.monotone((rows, contexts), plain),
        Grid.monotone((rows, flats, contexts), window),
        _draft_grid(draft) if draft else FREE,
    )


def _draft_grid(draft: Mapping[Point, float]) -> Grid:
    surface = Surface(undisturbed(draft), windows=False)
    depths = sorted({depth for _, depth, _ in draft})
    axes = (surface.rows, depths, surface.contexts)
    return Grid.monotone(axes, [surface.at(b, k, c) for b in axes[0] for k in depths for c in axes[2]])


class Surface:
    """Measured seconds at (rows, x, context) as a function defined everywhere on its axes.

    ``windows``: x is the width of a window. What a forward costs goes mostly by its token rows in all, so the curves
    that have many points give the shape between the points of those that have few. Without it x is a draft depth, and
    curves are straight in between.
    """

    def __init__(self, seconds: Mapping[Point, float], windows: bool) -> None:
        self.contexts = sorted({context for _, _, context in seconds})
        near = self.contexts[0]
        self._shape = _shape({(b, w): s for (b, w, c), s in seconds.items() if c == near}) if windows else [(0, 0.0)]
        self._curves: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for (rows, x, context), value in sorted(seconds.items()):
            above = value - along(self._shape, rows * x) if context == near else value
            self._curves.setdefault((rows, context), []).append((x, above))
        self.rows = sorted({rows for rows, context in self._curves if context == near})

    def widest(self, rows: int) -> int:
        """The largest x that was measured for so many rows at the shortest context."""
        return self._curves[rows, self.contexts[0]][-1][0]

    def at(self, rows: int, x: float, context: int) -> float:
        """Seconds for ``rows`` and ``context`` on the axes: the curve over x, and what the context adds."""
        return max(0.0, self._near(rows, x) + self._added(rows, x, context))

    def _near(self, rows: int, x: float) -> float:
        """At the shortest context. Behind the last point the shape goes on, what is above it does not."""
        curve = self._curves[rows, self.contexts[0]]
        return along(self._shape, rows * x) + along(curve, x, bounded=len(self._shape) > 1)

    def at_flat(self, rows: int, flat: int, context: int) -> float:
        """Seconds of ``flat`` token rows in all. More than these rows ever have cost what more rows cost for them."""
        if flat > rows * self.widest(rows):
            for more in self.rows[self.rows.index(rows) + 1 :]:
                if flat <= more * self.widest(more):
                    return self.at(more, flat / more, context)
        return self.at(rows, flat / rows, context)

    def _added(self, rows: int, x: float, context: int) -> float:
        """What ``context`` adds to the shortest one, per row as measured for the nearest numbers of rows."""
        if context == self.contexts[0]:
            return 0.0
        measured = sorted(b for b, c in self._curves if c == context and b in self.rows)
        shares = [(b, self._added_at(b, x, context) / b) for b in measured]
        return rows * along(shares, rows, bounded=True)

    def _added_at(self, rows: int, x: float, context: int) -> float:
        return along([(w, value - self._near(rows, w)) for w, value in self._curves[rows, context]], x)


def _shape(near: Mapping[tuple[int, int], float]) -> list[tuple[int, float]]:
    """Seconds by token rows in all: of one row as far as its windows go, then rising like those of the most rows."""
    fewest, most = min(rows for rows, _ in near), max(rows for rows, _ in near)
    shape = sorted((rows * width, value) for (rows, width), value in near.items() if rows == fewest)
    more = sorted((rows * width, value) for (rows, width), value in near.items() if rows == most)
    last, level = shape[-1]
    return shape + [(flat, level + value - along(more, last)) for flat, value in more if flat > last]


def along(curve: Sequence[tuple[int, float]], x: float, bounded: bool = False) -> float:
    """Linear interpolation on ascending points; level before the first, and behind the last one level (``bounded``) or
    rising with the last slope."""
    place = bisect_left(curve, (x,))
    if place == 0 or len(curve) == 1:
        return curve[0][1]
    if place == len(curve) and bounded:
        return curve[-1][1]
    (x0, y0), (x1, y1) = curve[min(place, len(curve) - 1) - 1], curve[min(place, len(curve) - 1)]
    slope = (y1 - y0) / (x1 - x0)
    return y1 + (x - x1) * (max(0.0, slope) if place == len(curve) else slope)
