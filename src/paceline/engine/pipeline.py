"""Which round comes next and when it is read: at once, or after the one behind it has been launched (spec 6.6, 10).

A round in flight is one that was launched and not read. Nothing here delivers: read rounds go to the settlement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import OutOfBlocks
from ..core.row import Row
from .device_round import RoundShape, unpack
from .draws import Flavor
from .launch import Figures, Launcher, RoundAsk
from .planning import RoundPlan
from .round import RoundRunner, VerifiedRound
from .scores import wants_logprobs
from .state import indices_of

if TYPE_CHECKING:
    from .group import SpeculativeGroup


class Flight:
    """A launched round: its plan, the shape it was launched with, and its figures."""

    def __init__(self, plan: RoundPlan, shape: RoundShape, figures: Figures) -> None:
        self.plan = plan
        self.shape = shape
        self.figures = figures
        self._named = {id(row) for row in plan.rows}

    def names(self, row: Row) -> bool:
        return id(row) in self._named

    def advances(self, row: Row) -> int:
        """Most inputs that the unread round adds to the row's state; 0 if it does not name the row."""
        return 1 + self.shape.depth if self.names(row) else 0


class Pipeline:
    """Runs the rounds of one group. ``settle`` is called for each round that was read, in order."""

    def __init__(
        self,
        group: SpeculativeGroup,
        runner: RoundRunner,
        launcher: Launcher,
        settle: Callable[[VerifiedRound], None],
    ) -> None:
        self._group = group
        self._parts = group.parts
        self._runner = runner
        self._launcher = launcher
        self._settle = settle
        self._flight: Flight | None = None
        self._begun: float | None = None

    def disturb(self) -> None:
        """Other work runs now: the round in flight cannot be timed."""
        self._begun = None

    def names(self, row: Row) -> bool:
        """Whether an unread round has a part for the row."""
        return self._flight is not None and self._flight.names(row)

    def advance(self) -> None:
        """One step: launch a round and read the one before it, or run one round to its end."""
        group = self._group
        if any(group.spans.started(row) for row in group.host.rows):
            self.flush()
        rows = list(group.host.rows)
        if rows:
            self._runner.clock.plan()
            plan = group.planner.plan(rows, None if self._flight is None else self._flight.names)
            ahead = self._may_run_ahead(plan)
            if self._flight is not None and not (ahead and self._is_worth_it(rows)):
                self.flush()
                rows = list(group.host.rows)
                decided = dict(zip(indices_of(plan.rows), plan.depths, strict=True))
                plan = group.planner.plan(rows, decided=decided)
                ahead = self._may_run_ahead(plan)
            if rows:
                self._run(plan, ahead)
        if not group.host.rows:
            self.drop()

    def flush(self) -> None:
        """Read and settle the round in flight, launching nothing (spec 10.6)."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._group.stats.flushes += 1
            self._land(flight)

    def drop(self) -> None:
        """Nobody is left: the round in flight can be delivered to no one, and the next row starts as the first did."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._group.stats.dropped_positions += sum(1 + width for width in flight.plan.widths)
        self._group.release_deferred()  # also those that waited for a round whose read failed
        self._group.planner.reset()

    def _run(self, plan: RoundPlan, ahead: bool) -> None:
        """``ahead``: whether the round may be read after the next one is launched; giving up depth does not change
        that."""
        if not ahead:
            plan = self._group.planner.preview(plan)
        plan = self._make_room(plan)
        if not plan.rows:
            return
        if self._flight is None:
            self._begun = time.perf_counter()
        if ahead:
            previous, self._flight = self._flight, self._launch(plan)
            if previous is not None:
                self._group.stats.ahead_rounds += 1
                self._land(previous)
                self._group.planner.watch_behind(self._group.host.rows)
        elif self._may_launch(plan):
            self._land(self._launch(plan))
        else:
            self._settle(replace(self._runner.run(plan), seconds=self._lap()))

    # -- what may be done ---------------------------------------------------------------------------------------------

    def _may_launch(self, plan: RoundPlan) -> bool:
        """Whether the device can run the whole round from its columns and what is uploaded (spec 7.6)."""
        group = self._group
        return (
            self._parts.device_round
            and not self._runner.clock.on
            and group.sampler.on_device(plan.rows)
            and not wants_logprobs(plan.rows)
            and not any(row.request.grammar is not None for row in plan.rows)
            and (group.drafter.on_device or (group.drafter.lags and not plan.depth))
        )

    def _may_run_ahead(self, plan: RoundPlan) -> bool:
        """Whether the round needs nothing that only the host knows (spec 10.2)."""
        records = self._parts.target.records >= 2
        return self._parts.run_ahead and records and not plan.span and self._may_launch(plan)

    def _is_worth_it(self, rows: Sequence[Row]) -> bool:
        """Whether some row may still draw after the round in flight (spec 10.4)."""
        return any(row.remaining - self.names(row) > 0 for row in rows)

    # -- launching and reading ----------------------------------------------------------------------------------------

    def _launch(self, plan: RoundPlan) -> Flight:
        drafter = self._group.drafter
        drafter.before_device_round(plan.rows, plan.depths, max(plan.depth, plan.span) + 1)
        plan.depths = [depth if drafter.has(row) else 0 for row, depth in zip(plan.rows, plan.depths, strict=True)]
        shape = RoundShape(plan.depth, plan.span, Flavor.of(plan.rows))
        ask = RoundAsk(indices_of(plan.rows), plan.depths, plan.given, shape)
        return Flight(plan, shape, self._launcher.launch(ask))

    def _land(self, flight: Flight) -> None:
        """Wait for a launched round and settle it."""
        figures = flight.figures.read()
        results = [
            unpack(row, numbers, flight.shape.depth, source)
            for row, source, numbers in zip(flight.plan.rows, flight.plan.sources, figures, strict=True)
        ]
        self._group.release_deferred()
        self._settle(VerifiedRound(flight.plan, results, on_device=True, reads=1, seconds=self._lap()))

    def _lap(self) -> float | None:
        """Seconds since the last lap, or since a round began with nothing in flight."""
        now, begun = time.perf_counter(), self._begun
        self._begun = now
        return None if begun is None else now - begun

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _make_room(self, plan: RoundPlan) -> RoundPlan:
        """Blocks for the round's windows. When the pool is short: evict prefixes, give up depth, preempt (18.3)."""
        while not self._reserve(plan):
            if not self._parts.cache.evict():
                break
        else:
            return plan
        self.flush()
        rows = list(self._group.host.rows)
        for row in rows:
            self._parts.tables.trim(row.index, row.length)
        while rows and not self._reserve(RoundPlan.plain(rows)):
            if not (self._parts.cache.evict() or self._group.host.make_room()):
                raise OutOfBlocks(len(rows), 0)
            rows = list(self._group.host.rows)
        return RoundPlan.plain(rows)

    def _reserve(self, plan: RoundPlan) -> bool:
        """Blocks for the worst case of this round and an unread one (spec 10.3)."""
        try:
            for row, width in zip(plan.rows, plan.widths, strict=True):
                unread = 0 if self._flight is None else self._flight.advances(row)
                self._parts.free_behind_window(row, row.length)
                self._parts.tables.reserve(row.index, min(row.length + unread + 1 + width, row.position_limit))
        except OutOfBlocks:
            return False
        return True
