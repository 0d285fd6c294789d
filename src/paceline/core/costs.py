"""What a round costs in seconds, as plain data: a plain step, a verify window, a draft (spec 11.4).

Knows nothing of how costs are measured or who decides by them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from .errors import ConfigError


def _strides(axes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Distance in a row-major list between neighbours on each axis."""
    return tuple(math.prod(map(len, axes[number + 1 :])) for number in range(len(axes)))


def _locate(axis: Sequence[int], x: float) -> tuple[int, float]:
    """Place of the point below ``x`` and the share of the one above it; clamped to the axis."""
    low = bisect_right(axis, x) - 1
    if low < 0:
        return 0, 0.0
    if low >= len(axis) - 1:
        return len(axis) - 1, 0.0
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def _raise_along(axes: Sequence[Sequence[int]], values: Sequence[float]) -> list[float]:
    """Running maximum along every axis in turn: the least monotone values that are nowhere below the given ones."""
    strides, raised = _strides(axes), list(values)
    for axis, stride in zip(axes, strides, strict=True):
        for place in range(stride, len(raised)):
            if place // stride % len(axis):
                raised[place] = max(raised[place], raised[place - stride])
    return raised


@dataclass(frozen=True)
class Grid:
    """Values at the crossings of ``axes``, row-major (the last axis moves fastest); never falling along any axis.

    Each axis is ascending. Between points values are interpolated linearly; below the first point of an axis they are
    clamped; above the last one they go on with the slope of the last two points. Use :meth:`monotone` for measured
    values, which need not be monotone. :class:`ConfigError` says what is wrong with a grid.
    """

    axes: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]
    _strides: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _slopes: tuple[Grid | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(not axis or any(a >= b for a, b in pairwise(axis)) for axis in self.axes):
            raise ConfigError("costs", f"axes must be ascending and not empty: {self.axes}")
        if len(self.values) != math.prod(map(len, self.axes)):
            raise ConfigError("costs", f"{len(self.values)} values for a grid of {[len(axis) for axis in self.axes]}")
        if not all(math.isfinite(value) and value >= 0 for value in self.values):
            raise ConfigError("costs", "values must be finite and not negative")
        if list(self.values) != _raise_along(self.axes, self.values):
            raise ConfigError("costs", "values must not fall along an axis")
        object.__setattr__(self, "_strides", _strides(self.axes))
        object.__setattr__(self, "_slopes", tuple(self._last_slope(number) for number in range(len(self.axes))))

    @classmethod
    def monotone(cls, axes: Sequence[Sequence[int]], values: Sequence[float | None]) -> Grid:
        """A grid of measured values (``None`` or NaN = not measured), raised where they would fall along an axis.

        A value that was not measured becomes the greatest of those below it.
        """
        if any(value is not None and value == math.inf for value in values):
            raise ConfigError("costs", "values must be finite and not negative")
        known = [-math.inf if value is None or math.isnan(value) else value for value in values]
        raised = _raise_along(axes, known)
        return cls(tuple(map(tuple, axes)), tuple(0.0 if value == -math.inf else value for value in raised))

    def at(self, *where: float) -> float:
        """The value at one coordinate per axis."""
        corners = [(0, 1.0)]
        for axis, stride, x in zip(self.axes, self._strides, where, strict=True):
            low, weight = _locate(axis, x)
            at_low = [(place + low * stride, share * (1.0 - weight)) for place, share in corners]
            if weight:
                at_low += [(place + (low + 1) * stride, share * weight) for place, share in corners]
            corners = at_low
        value = sum(self.values[place] * share for place, share in corners)
        for number, (axis, x) in enumerate(zip(self.axes, where, strict=True)):
            slope = self._slopes[number]
            if x > axis[-1] and slope is not None:
                value += (x - axis[-1]) * slope.at(*where[:number], *where[number + 1 :])
        return value

    def _last_slope(self, number: int) -> Grid | None:
        """Slope between the last two points of an axis over the other axes; raised to be monotone there, for else a
        value beyond the grid could fall along another axis. ``None``: one point only, flat."""
        axis, stride = self.axes[number], self._strides[number]
        if len(axis) == 1:
            return None
        tops = [place for place in range(len(self.values)) if place // stride % len(axis) == len(axis) - 1]
        step = axis[-1] - axis[-2]
        slopes = [max(0.0, (self.values[top] - self.values[top - stride]) / step) for top in tops]
        return Grid.monotone((*self.axes[:number], *self.axes[number + 1 :]), slopes)

    def scaled(self, factor: float) -> Grid:
        """All values times ``factor`` (not negative)."""
        return Grid.monotone(self.axes, [value * factor for value in self.values])

    def cells(self) -> Iterator[tuple[tuple[int, ...], float]]:
        """Coordinates and value of every point, in order."""
        yield from zip(product(*self.axes), self.values, strict=True)

    def to_json(self) -> dict[str, Any]:
        return {"axes": [list(axis) for axis in self.axes], "values": list(self.values)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grid:
        """Read :meth:`to_json`'s form; :class:`ConfigError` if it is not that. ``null`` stands for not measured."""
        try:
            axes = tuple(tuple(int(point) for point in axis) for axis in data["axes"])
            values = [None if value is None else float(value) for value in data["values"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("costs", f"not a grid: {error!r}") from error
        return cls.monotone(axes, values)


#: Draft costs of a drafter without a model forward.
FREE = Grid(((1,), (1,), (1,)), (0.0,))


@dataclass(frozen=True)
class CostTable:
    """Seconds of a round's parts on one device, for one target and one drafter.

    ``plain_grid``: rows x context. ``verify_grid``: rows x flat token rows x context. ``draft_grid``: rows x depth x
    context; :data:`FREE` for a drafter without a forward. Contexts are tokens per row. ``error``: largest relative
    error that interpolation showed at points kept back when the table was measured.
    """

    plain_grid: Grid
    verify_grid: Grid
    draft_grid: Grid = FREE
    error: float = 0.0

    def __post_init__(self) -> None:
        for name, grid, axes in (("plain", self.plain_grid, 2), ("verify", self.verify_grid, 3)):
            _check_axes(name, grid, axes)
        _check_axes("draft", self.draft_grid, 3)

    def plain(self, rows: int, context: float) -> float:
        """A round in which ``rows`` rows have no proposals."""
        return self.plain_grid.at(rows, context)

    def verify(self, rows: int, flat: int, context: float) -> float:
        """A round's target work for ``flat`` token rows of ``rows`` rows; the plain cost if each row has one."""
        plain = self.plain_grid.at(rows, context)
        return plain if flat <= rows else max(plain, self.verify_grid.at(rows, flat, context))

    def draft(self, rows: int, depth: int, context: float) -> float:
        """Proposing ``depth`` tokens for each of ``rows`` rows; nothing where either is 0."""
        return self.draft_grid.at(rows, depth, context) if rows > 0 and depth > 0 else 0.0

    def scaled(self, plain: float = 1.0, verify: float = 1.0, draft: float = 1.0) -> CostTable:
        """The table with its parts times these factors."""
        grids = (self.plain_grid.scaled(plain), self.verify_grid.scaled(verify), self.draft_grid.scaled(draft))
        return CostTable(*grids, self.error)

    def without_draft(self) -> CostTable:
        """The same target with a drafter that costs nothing."""
        return CostTable(self.plain_grid, self.verify_grid, FREE, self.error)

    def to_json(self) -> dict[str, Any]:
        grids = {"plain": self.plain_grid, "verify": self.verify_grid, "draft": self.draft_grid}
        return {name: grid.to_json() for name, grid in grids.items()} | {"error": self.error}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostTable:
        """Read :meth:`to_json`'s form (``draft`` and ``error`` may be missing), or raise :class:`ConfigError`."""
        try:
            grids = [Grid.from_json(data[name]) for name in ("plain", "verify")]
            draft = Grid.from_json(data["draft"]) if data.get("draft") is not None else FREE
            return cls(grids[0], grids[1], draft, float(data.get("error", 0.0)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError("costs", f"not a cost table: {error!r}") from error


def _check_axes(name: str, grid: Grid, axes: int) -> None:
    if len(grid.axes) != axes:
        raise ConfigError("costs", f"the {name} grid must have {axes} axes, not {len(grid.axes)}")
