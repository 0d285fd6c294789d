"""Sweeps over points whose times are known: what is chosen, in which order it runs, what drift and disturbance do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from paceline.engine.sweep import Effort, Point, faster_half, sweep


class Machine:
    """A clock that only runs move. ``seconds``: of a run of a point, given how many runs there were before it."""

    def __init__(self, seconds: Callable[[Point, int], float]) -> None:
        self.now = 0.0
        self.ran: list[Point] = []
        self._seconds = seconds

    def run(self, point: Point) -> float:
        took = self._seconds(point, len(self.ran))
        self.ran.append(point)
        self.now += took
        return took

    def sweep(self, points: Sequence[Point], effort: Effort) -> dict[Point, float]:
        return sweep(points, self.run, effort, clock=lambda: self.now)


POINTS = [(1, width, 64) for width in range(1, 9)]


def test_every_point_warms_up_and_runs_at_least_three_times() -> None:
    machine = Machine(lambda point, _: 0.01 * point[1])
    assert machine.sweep(POINTS, Effort(100.0)) == pytest.approx({point: 0.01 * point[1] for point in POINTS})
    assert Counter(machine.ran) == dict.fromkeys(POINTS, 4)


def test_a_fast_machine_makes_more_passes_but_not_for_ever() -> None:
    machine = Machine(lambda point, _: 1e-6)
    machine.sweep(POINTS, Effort(100.0))
    assert Counter(machine.ran) == dict.fromkeys(POINTS, 8)


def test_the_time_allowed_bounds_what_is_measured_most_important_points_first() -> None:
    machine = Machine(lambda point, _: 1.0)
    assert list(machine.sweep(POINTS, Effort(21.0))) == POINTS[:6]
    assert machine.now <= 24.0


def test_the_least_is_measured_whatever_it_takes() -> None:
    machine = Machine(lambda point, _: 50.0)
    assert list(machine.sweep(POINTS, Effort(10.0, least=2))) == POINTS[:2]
    assert len(machine.ran) == 6


def test_a_first_run_that_compiles_does_not_use_up_the_time_of_others() -> None:
    machine = Machine(lambda point, done: 2.0 if done == 0 else 0.01)
    assert len(machine.sweep(POINTS, Effort(4.0))) == len(POINTS)


def test_a_machine_that_slows_down_bends_no_curve() -> None:
    """Runs become up to twice as slow over the sweep; all points by the same share."""
    steady = Machine(lambda point, _: 0.01 * point[1]).sweep(POINTS, Effort(100.0))
    runs = len(POINTS) * 4
    drifting = Machine(lambda point, done: 0.01 * point[1] * (1 + done / runs)).sweep(POINTS, Effort(100.0))
    shares = [drifting[point] / steady[point] for point in POINTS]
    assert max(shares) / min(shares) < 1.15
    in_turn = {point: 0.01 * point[1] * (1 + place / len(POINTS)) for place, point in enumerate(POINTS)}
    assert in_turn[POINTS[-1]] / steady[POINTS[-1]] > 1.15 * in_turn[POINTS[0]] / steady[POINTS[0]]


def test_a_disturbed_run_does_not_count() -> None:
    machine = Machine(lambda point, done: 5.0 if done == len(POINTS) + 2 else 0.01)
    assert machine.sweep(POINTS, Effort(100.0)) == pytest.approx(dict.fromkeys(POINTS, 0.01))


def test_progress_ends_at_no_more_than_all() -> None:
    heard: list[float] = []
    machine = Machine(lambda point, _: 1.0)
    sweep(POINTS, machine.run, Effort(8.0), clock=lambda: machine.now, report=heard.append)
    assert heard == sorted(heard)
    assert 0.0 <= heard[0] <= heard[-1] <= 1.0


def test_faster_half() -> None:
    assert faster_half([3.0]) == 3.0
    assert faster_half([9.0, 1.0, 2.0]) == 1.5
    assert faster_half([4.0, 1.0, 3.0, 2.0]) == 1.5
