"""Cost tables: interpolation, monotone in every axis, the same after a trip through JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.costs import FREE, CostTable, Grid
from paceline.core.errors import ConfigError

PLAIN = Grid(((1, 4), (0, 1000)), (1.0, 2.0, 3.0, 5.0))
VERIFY = Grid.monotone(((1, 4), (2, 8), (0,)), (1.5, 3.0, None, 6.0))
TABLE = CostTable(PLAIN, VERIFY, Grid(((1,), (1, 3), (0,)), (0.5, 1.5)), error=0.03)


def test_points_of_the_grid_are_exact() -> None:
    assert [PLAIN.at(*where) for where, _ in PLAIN.cells()] == [value for _, value in PLAIN.cells()]


def test_between_points_linear_below_clamped_above_with_the_last_slope() -> None:
    grid = Grid(((2, 4, 8),), (1.0, 2.0, 6.0))
    assert [grid.at(x) for x in (0, 2, 3, 6, 8, 10)] == [1.0, 1.0, 1.5, 4.0, 6.0, 8.0]
    assert PLAIN.at(2.5, 500) == pytest.approx((1.0 + 2.0 + 3.0 + 5.0) / 4)
    assert Grid(((5,),), (7.0,)).at(100) == 7.0


def test_measured_values_are_raised_where_they_would_fall() -> None:
    assert Grid.monotone(((1, 2, 3),), (2.0, 1.0, 3.0)).values == (2.0, 2.0, 3.0)
    assert Grid.monotone(((1, 2), (1, 2)), (1.0, 4.0, 2.0, 3.0)).values == (1.0, 4.0, 2.0, 4.0)


def test_values_that_were_not_measured_are_those_below_them() -> None:
    assert Grid.monotone(((1, 2), (1, 2)), (1.0, 2.0, None, math.nan)).values == (1.0, 2.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("axes", "values", "message"),
    [
        (((1, 1),), (1.0, 1.0), "ascending"),
        (((),), (), "ascending"),
        (((1, 2),), (1.0,), "1 values"),
        (((1, 2),), (1.0, math.inf), "finite"),
        (((1,),), (-1.0,), "negative"),
        (((1, 2),), (2.0, 1.0), "fall"),
    ],
)
def test_a_grid_that_is_none_is_refused(axes: tuple, values: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Grid(axes, values)


def _grids(axes: int) -> st.SearchStrategy[Grid]:
    points = st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))

    def of(shape: list[tuple[int, ...]]) -> st.SearchStrategy[Grid]:
        count = math.prod(map(len, shape))
        cells = st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=count, max_size=count)
        return cells.map(lambda values: Grid.monotone(shape, values))

    return st.lists(points, min_size=axes, max_size=axes).flatmap(of)


def falls(at, where: list[float], axis: int, step: float) -> bool:  # type: ignore[no-untyped-def]
    further = [x + step * (number == axis) for number, x in enumerate(where)]
    before, after = at(*where), at(*further)
    return after < before - 1e-9 * max(1.0, before)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(_grids(3), st.lists(st.floats(0, 200), min_size=3, max_size=3), st.integers(0, 2), st.floats(0, 50))
def test_monotone_in_every_axis_inside_and_beyond_the_grid(
    grid: Grid, where: list[float], axis: int, step: float
) -> None:
    assert not falls(grid.at, where, axis, step)


def test_the_monotone_check_sees_plain_multilinear_extrapolation() -> None:
    """Extrapolating the last cell itself would fall along the other axis: the check must see that."""

    def broken(x: float, y: float) -> float:
        low, high = 1.0 + 9.0 * (y - 1.0), 10.0
        return low + (high - low) * (x - 1.0)

    assert falls(broken, [3.0, 1.0], 1, 1.0)
    assert not falls(Grid(((1, 2), (1, 2)), (1.0, 10.0, 10.0, 10.0)).at, [3.0, 1.0], 1, 1.0)


def test_a_window_of_one_token_a_row_costs_a_plain_step() -> None:
    assert TABLE.verify(4, 4, 1000) == TABLE.plain(4, 1000) == 5.0
    assert TABLE.verify(1, 2, 0) == 1.5


def test_a_window_never_costs_less_than_a_plain_step() -> None:
    assert TABLE.verify(4, 5, 1000) >= TABLE.plain(4, 1000)


def test_no_draft_costs_nothing() -> None:
    assert TABLE.draft(0, 3, 10) == TABLE.draft(1, 0, 10) == 0.0
    assert [TABLE.draft(1, depth, 10) for depth in (1, 2, 3, 4)] == [0.5, 1.0, 1.5, 2.0]
    assert FREE.at(8, 16, 4000) == 0.0
    assert TABLE.without_draft().draft(1, 3, 10) == 0.0


def test_parts_scale_apart() -> None:
    scaled = TABLE.scaled(verify=2.0, draft=3.0)
    assert scaled.plain(1, 0) == TABLE.plain(1, 0)
    assert scaled.verify(1, 2, 0) == 2.0 * TABLE.verify(1, 2, 0)
    assert scaled.draft(1, 1, 0) == 3.0 * TABLE.draft(1, 1, 0)


def test_json_keeps_everything() -> None:
    assert CostTable.from_json(json.loads(json.dumps(TABLE.to_json()))) == TABLE


@pytest.mark.parametrize("data", [{}, {"plain": 1}, {"plain": {"axes": [[1]], "values": "x"}}, [], {"plain": PLAIN}])
def test_json_that_is_no_table_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="costs"):
        CostTable.from_json(data)  # type: ignore[arg-type]


def test_grids_of_other_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="verify grid must have 3 axes"):
        CostTable(PLAIN, PLAIN)
