"""The best depths of one round: against trying every combination, ties, and costs that jump."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.costs import FREE, CostTable, Grid
from paceline.gate.decision import Choice, RoundCosts, choose

RATES = st.lists(st.floats(0.0, 1.0), max_size=4)


def chances_of(rates: Sequence[Sequence[float]]) -> list[list[float]]:
    found = []
    for own in rates:
        chance, chances = 1.0, []
        for rate in own:
            chance *= rate
            chances.append(chance)
        found.append(chances)
    return found


def value(chances: Sequence[Sequence[float]], costs: RoundCosts, depths: Sequence[int]) -> float:
    """Spec 11.5 as it stands there."""
    tokens = sum(1.0 + sum(own[:depth]) for own, depth in zip(chances, depths, strict=True))
    return tokens / costs.of(depths)


def best_of_all(chances: Sequence[Sequence[float]], costs: RoundCosts) -> float:
    return max(value(chances, costs, depths) for depths in product(*(range(len(own) + 1) for own in chances)))


@st.composite
def tables(draw: st.DrawFn, per_row: bool = False) -> CostTable:
    """Windows whose cost rises in random steps; a draft that costs by depth, and by row if ``per_row``."""
    flats = tuple(range(1, 17))
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5]), min_size=16, max_size=16))
    costs = [1.0 + sum(steps[: flat - 1]) for flat in flats]
    plain = Grid.monotone(((1, 2, 3), (0,)), costs[:3])
    verify = Grid.monotone(((1,), flats, (0,)), costs)
    if draw(st.booleans()):
        return CostTable(plain, verify, FREE)
    step = draw(st.sampled_from([0.02, 0.2]))
    if per_row:
        return CostTable(plain, verify, Grid(((1, 3), (1, 4), (0,)), (step, 4 * step, 2 * step, 8 * step)))
    return CostTable(plain, verify, Grid(((1,), (1, 4), (0,)), (step, 4 * step)))


def check_best(choice: Callable[..., Choice], rates: list[list[float]], table: CostTable) -> None:
    chances, costs = chances_of(rates), RoundCosts(table, len(rates), 0)
    found = choice(chances, costs)
    assert all(0 <= depth <= len(own) for depth, own in zip(found.depths, chances, strict=True))
    assert value(chances, costs, found.depths) == pytest.approx(best_of_all(chances, costs), rel=1e-9)
    assert found.tokens / found.cost == pytest.approx(value(chances, costs, found.depths))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(RATES, min_size=1, max_size=3), tables())
def test_the_choice_is_the_best_of_all_combinations(rates: list[list[float]], table: CostTable) -> None:
    check_best(choose, rates, table)


def first_that_stops_paying(chances: Sequence[Sequence[float]], costs: RoundCosts) -> Choice:
    """Broken: stops at the first proposal that does not pay, though one behind it may."""
    depths = [0] * len(chances)
    offers = sorted((-c, place, row) for row, own in enumerate(chances) for place, c in enumerate(own, 1))
    for _, place, row in offers:
        tried = [max(depth, place) if number == row else depth for number, depth in enumerate(depths)]
        if value(chances, costs, tried) <= value(chances, costs, depths):
            break
        depths = tried
    tokens = sum(1.0 + sum(own[:depth]) for own, depth in zip(chances, depths, strict=True))
    return Choice(depths, tokens, costs.of(depths))


def one_depth_for_all(chances: Sequence[Sequence[float]], costs: RoundCosts) -> Choice:
    """Broken: every row gets the depth that is best for all."""
    several = [[min(depth, len(own)) for own in chances] for depth in range(5)]
    depths = max(several, key=lambda each: value(chances, costs, each))
    tokens = sum(1.0 + sum(own[:depth]) for own, depth in zip(chances, depths, strict=True))
    return Choice(depths, tokens, costs.of(depths))


JUMP = CostTable(
    Grid(((1, 2), (0,)), (1.0, 1.0)), Grid.monotone(((1,), (1, 2, 3, 9), (0,)), (1.0, 2.0, 2.0, 2.0)), FREE
)
STEEP = CostTable(Grid(((1, 2), (0,)), (1.0, 1.0)), Grid.monotone(((1,), (2, 9), (0,)), (1.0, 2.4)), FREE)


@pytest.mark.parametrize(
    ("broken", "rates", "table"),
    [(first_that_stops_paying, [[0.9] * 4], JUMP), (one_depth_for_all, [[0.99] * 3, [0.05] * 3], STEEP)],
)
def test_the_comparison_sees_wrong_choices(
    broken: Callable[..., Choice], rates: list[list[float]], table: CostTable
) -> None:
    with pytest.raises(AssertionError):
        check_best(broken, rates, table)
    check_best(choose, rates, table)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(RATES, min_size=1, max_size=3), tables(per_row=True))
def test_where_drafts_cost_by_row_the_choice_is_near_the_best(rates: list[list[float]], table: CostTable) -> None:
    chances, costs = chances_of(rates), RoundCosts(table, len(rates), 0)
    found = value(chances, costs, choose(chances, costs).depths)
    assert found >= costs_of_nothing(costs, len(rates))
    assert found >= 0.9 * best_of_all(chances, costs)


def costs_of_nothing(costs: RoundCosts, rows: int) -> float:
    return rows / costs.plain - 1e-12


def test_ties_go_to_the_smaller_window() -> None:
    table = CostTable(Grid(((1,), (0,)), (1.0,)), Grid(((1,), (1, 9), (0,)), (1.0, 1.0)), FREE)
    assert choose([[1.0, 0.0, 0.0]], RoundCosts(table, 1, 0)).depths == [1]
    assert choose([[0.0, 0.0]], RoundCosts(table, 1, 0)).depths == [0]


def test_rows_without_proposals_take_part() -> None:
    assert choose([[], [0.9]], RoundCosts(JUMP, 2, 0)).depths[0] == 0
    assert choose([[], []], RoundCosts(JUMP, 2, 0)) == ([0, 0], 2.0, 1.0)


def test_costs_are_looked_up_once() -> None:
    costs = RoundCosts(JUMP, 2, 0)
    assert costs.verify(5) is costs.verify(3)
    assert costs.drafts(2) is costs.drafts(2)
    assert costs.of([2, 0]) == JUMP.verify(2, 4, 0)
