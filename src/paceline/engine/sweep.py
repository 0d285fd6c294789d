"""Times the points of a grid so that a machine that drifts, or is disturbed now and then, bends no curve.

Knows what a point costs to run, not what it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Rows, tokens per row (or draft depth), context length.
Point = tuple[int, int, int]
#: Runs a point once and returns the seconds that count; what it takes to set the point up does not.
RunPoint = Callable[[Point], float]
#: Hears of the share of the work that is done, 0 to 1.
Report = Callable[[float], None]


#: Share of all time that a single run is not expected to take.
_SLOW = 0.05


@dataclass(frozen=True)
class Effort:
    """How long to measure: at most about ``seconds``, but the first ``least`` points in any case.

    Every point that is measured runs at least ``passes`` times after its warm-up; further passes are made, up to
    ``most_passes``, as long as all of them together stay below ``enough`` seconds.
    """

    seconds: float
    least: int = 1
    passes: int = 3
    most_passes: int = 7
    enough: float = 0.2


def sweep(
    points: Sequence[Point],
    run: RunPoint,
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
    report: Report | None = None,
) -> dict[Point, float]:
    """Seconds of the points that fit into the effort, taken in the order given: what matters most comes first.

    Passes go over all points, forwards and backwards in turn, so that a machine that becomes slower makes all points
    slower alike. Of each point the faster half of its runs counts: other work on a machine only ever adds time.
    """
    start = clock()
    tell = report or (lambda share: None)
    chosen = _warm_up(points, run, effort, (clock, tell))
    times: dict[Point, list[float]] = {point: [] for point in chosen}
    slowest = 0.0
    for number in range(effort.most_passes):
        begun = clock()
        spent = begun - start
        if number >= 1 and spent + slowest > effort.seconds:
            break
        if number >= effort.passes and spent + slowest > effort.enough:
            break
        for point in chosen if number % 2 == 0 else reversed(chosen):
            times[point].append(run(point))
        slowest = max(slowest, clock() - begun)
        tell(min(1.0, (clock() - start) / effort.seconds))
    return {point: faster_half(taken) for point, taken in times.items()}


def _warm_up(
    points: Sequence[Point], run: RunPoint, effort: Effort, watch: tuple[Callable[[], float], Report]
) -> list[Point]:
    """Run points once until what they will take again leaves no time for more. A run that is suspiciously slow may be
    the first of its kernels, which are compiled then, and says little about the next: it is made twice."""
    clock, tell = watch
    start, again, chosen = clock(), 0.0, list[Point]()
    for point in points:
        spent = clock() - start
        if len(chosen) >= effort.least and spent + again * effort.passes > effort.seconds:
            break
        begun = clock()
        run(point)
        if clock() - begun > _SLOW * effort.seconds:
            begun = clock()
            run(point)
        again += clock() - begun
        chosen.append(point)
        tell(min(1.0, spent / effort.seconds))
    return chosen


def faster_half(times: Sequence[float]) -> float:
    """Mean of the faster half of the runs, the middle one included."""
    kept = sorted(times)[: (len(times) + 1) // 2]
    return sum(kept) / len(kept)
