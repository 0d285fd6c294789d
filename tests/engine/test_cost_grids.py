"""Plans of points and the tables they make, on costs that are known functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.costs import CostTable
from paceline.engine.cost_grids import (
    Reach,
    along,
    contexts_within,
    cost_table,
    draft_plan,
    row_counts,
    undisturbed,
    verify_plan,
)
from paceline.engine.sweep import Point

REACH = Reach(rows=8, widest=9, alone=33, contexts=(64, 512, 2048))


def additive(point: Point) -> float:
    """A fixed part, a part per token row, and attention per row and context."""
    rows, width, context = point
    return 5.0 + 0.2 * rows * width + 0.001 * rows * context * (1 + 0.1 * width)


def drafted(point: Point) -> float:
    rows, depth, context = point
    return depth * (0.5 + 0.05 * rows + 0.0002 * context * rows)


def table(reach: Reach = REACH) -> CostTable:
    plan = verify_plan(reach)
    return cost_table({point: additive(point) for point in plan.points}, {}, plan.kept_back)


def test_a_plan_begins_with_what_no_table_can_do_without() -> None:
    plan = verify_plan(REACH)
    assert set(plan.points[: plan.least]) == {(1, 1, 64), (1, 9, 64), (8, 1, 64), (8, 9, 64)}
    assert len(plan.points) == len(set(plan.points))
    assert plan.kept_back <= set(plan.points)
    assert len(plan.kept_back) == 3
    assert {rows for rows, _, _ in set(plan.points) - plan.kept_back} == {1, 2, 4, 8}
    assert {context for _, _, context in set(plan.points) - plan.kept_back} == {64, 512, 2048}
    assert max(width for rows, width, _ in plan.points if rows > 1) == 9


@given(
    st.integers(1, 64),
    st.integers(1, 65),
    st.integers(0, 40),
    st.lists(st.integers(0, 4096), min_size=1, max_size=4, unique=True),
)
def test_any_first_part_of_a_plan_makes_a_table(rows: int, widest: int, more: int, contexts: list[int]) -> None:
    reach = Reach(rows, widest, widest + more, tuple(sorted(contexts)))
    plan = verify_plan(reach)
    for count in {plan.least, (plan.least + len(plan.points)) // 2, len(plan.points)}:
        points = plan.points[:count]
        made = cost_table({point: additive(point) for point in points}, {}, plan.kept_back)
        assert made.plain(1, reach.contexts[0]) == pytest.approx(additive((1, 1, reach.contexts[0])))
        assert made.verify(rows, rows * widest, reach.contexts[0]) >= made.plain(rows, reach.contexts[0])


def test_costs_that_are_linear_are_met_between_the_points_and_beyond_them() -> None:
    costs = table()
    assert costs.error < 0.02
    for rows, width, context in ((1, 4, 64), (3, 5, 64), (5, 2, 300), (8, 9, 2048), (8, 7, 1000), (1, 20, 512)):
        assert costs.verify(rows, rows * width, context) == pytest.approx(additive((rows, width, context)), rel=0.02)
        assert costs.plain(rows, context) == pytest.approx(additive((rows, 1, context)), rel=0.02)
    assert costs.plain(8, 4096) == pytest.approx(additive((8, 1, 4096)), rel=0.02)


def test_the_error_is_that_of_the_points_kept_back() -> None:
    plan = verify_plan(REACH)
    seconds = {point: additive(point) for point in plan.points}
    apart = min(plan.kept_back)
    seconds[apart] *= 1.25
    assert cost_table(seconds, {}, plan.kept_back).error == pytest.approx(0.2, abs=0.01)
    assert cost_table({p: s for p, s in seconds.items() if p != apart}, {}, plan.kept_back).error < 0.02


def test_a_point_kept_back_enters_the_table_once_its_error_is_known() -> None:
    plan = verify_plan(REACH)
    apart = next(point for point in plan.kept_back if point[0] == 1 and point[2] == 64)
    jagged = {point: additive(point) * (1.05 if point == apart else 1.0) for point in plan.points}
    made = cost_table(jagged, {}, plan.kept_back)
    assert made.verify(1, apart[1], 64) == pytest.approx(min(jagged[apart], jagged[1, apart[1] + 1, 64]))


def test_one_disturbed_point_spoils_no_other() -> None:
    """A running maximum would carry it to all larger windows; here the cheaper measurement behind it wins."""
    plan = verify_plan(REACH)
    seconds = {point: additive(point) for point in plan.points}
    calm = cost_table(seconds, {}, plan.kept_back)
    seconds[2, 1, 64] *= 6
    disturbed = cost_table(seconds, {}, plan.kept_back)
    for rows, flat in ((1, 1), (4, 4), (8, 8), (8, 72)):
        assert disturbed.verify(rows, flat, 64) == pytest.approx(calm.verify(rows, flat, 64), rel=0.02)
    assert disturbed.plain(2, 64) <= calm.plain(4, 64)


def test_undisturbed_never_raises_and_never_falls() -> None:
    seconds = {(1, 1, 0): 1.0, (1, 2, 0): 9.0, (1, 3, 0): 2.0, (2, 2, 0): 4.0}
    assert undisturbed(seconds) == {(1, 1, 0): 1.0, (1, 2, 0): 2.0, (1, 3, 0): 2.0, (2, 2, 0): 4.0}


def test_drafts_have_a_grid_of_their_own() -> None:
    verify, draft = verify_plan(REACH), draft_plan(8, 6, 64)
    far = draft_plan(1, 6, 512)
    seconds = {point: drafted(point) for point in (*draft.points, *far.points)}
    costs = cost_table({point: additive(point) for point in verify.points}, seconds, draft.kept_back | far.kept_back)
    for rows, depth, context in ((1, 3, 64), (5, 6, 64), (8, 2, 512), (2, 4, 200)):
        assert costs.draft(rows, depth, context) == pytest.approx(drafted((rows, depth, context)), rel=0.05)
    assert costs.draft(0, 3, 64) == costs.draft(2, 0, 64) == 0.0
    assert table().draft(8, 9, 64) == 0.0


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_draft_plan_holds_its_corners(rows: int, depth: int) -> None:
    plan = draft_plan(rows, depth, 64)
    assert set(plan.points[: plan.least]) == {(b, k, 64) for b in (1, rows) for k in (1, depth)}
    assert not plan.kept_back & set(plan.points[: plan.least])
    assert all(1 <= b <= rows and 1 <= k <= depth for b, k, _ in plan.points)


def test_axes() -> None:
    assert row_counts(1) == (1,)
    assert row_counts(6) == (1, 2, 4, 6)
    assert row_counts(64) == (1, 2, 4, 8, 16, 32, 64)
    assert contexts_within(600) == (64, 512)
    assert contexts_within(30) == (30,)
    assert contexts_within(-2) == (0,)


def test_interpolation_along_a_curve() -> None:
    curve = [(1, 2.0), (3, 4.0), (4, 3.0)]
    assert [along(curve, x) for x in (0, 1, 2, 3, 3.5, 4, 9)] == [2.0, 2.0, 3.0, 4.0, 3.5, 3.0, 3.0]
    assert along([(1, 2.0), (3, 4.0)], 5) == 6.0
    assert along([(1, 2.0), (3, 4.0)], 5, bounded=True) == 4.0
    assert along([(7, 1.5)], 2) == 1.5
