"""Which device rounds an engine captures when a group opens, and the launcher that replays them.

It knows what rounds can be asked for; recording and replay are the runner's work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .device_round import RoundMachine, RoundShape, device_round
from .draws import Flavor
from .graph_backend import CudaGraphs, GraphBackend
from .graph_runner import CaptureReport, GraphLauncher, RoundSetting
from .launch import EagerLauncher, Launcher

_LOG = logging.getLogger("paceline.engine")

GREEDY, SAMPLED, FILTERED = Flavor(True, False), Flavor(False, False), Flavor(False, True)
FLAVORS = (GREEDY, SAMPLED, FILTERED)
"""What the rows of a round need: argmax only, noise, noise and filters."""
SHARED_SPAN, LONE_SPANS = 8, (16, 32)
"""Columns of copied spans that rounds are captured for: of any batch, and of a row that is alone."""

Progress = Callable[[str, int, int], None]


def round_shapes(depth: int, on_device: bool, fill_span: int, flavors: Sequence[Flavor] = FLAVORS) -> list[RoundShape]:
    """Shapes of the rounds that can be asked for: plain, drafted on the device or given by the host up to ``depth``,
    and spans. Narrower spans run in the next wider graph; a round that mixes spans and drafts runs eagerly."""
    spans = [span for span in (SHARED_SPAN, *LONE_SPANS) if span <= fill_span]
    given = sorted(
        {*(() if on_device else range(1, depth + 1)), *(span for span in spans if span > depth or on_device)}
    )
    drafts = range(1, depth + 1) if on_device else ()
    return [
        shape
        for flavor in flavors
        for shape in (
            RoundShape(0, 0, flavor),
            *(RoundShape(count, 0, flavor) for count in drafts),
            *(RoundShape(0, count, flavor) for count in given),
        )
    ]


def largest_batch(shape: RoundShape, depth: int) -> int:
    """The largest batch for which a shape is of use: long spans go to rows that are alone."""
    return 1 if shape.given > max(depth, SHARED_SPAN) else 1 << 30


class LauncherFactory:
    """Makes the launcher of each group that opens. ``padding``: the row that fills batches, ``None`` = no graphs.

    ``report``: what the last capture did.
    """

    def __init__(
        self,
        padding: int | None,
        fill_span: int,
        progress: Progress | None = None,
        flavors: Sequence[Flavor] = FLAVORS,
        backend: GraphBackend | None = None,
    ) -> None:
        self._padding = padding
        self._fill_span = fill_span
        self._progress = progress
        self._flavors = flavors
        self._backend = backend
        self.report = CaptureReport()

    def __call__(self, machine: RoundMachine) -> Launcher:
        """A launcher with its graphs captured; without graphs one that runs rounds operation by operation."""
        if self._padding is None:
            return EagerLauncher(machine)
        parts = machine.parts
        launcher = self._launcher(machine, self._padding, lazy=False)
        shapes = round_shapes(parts.depth, machine.drafter.on_device, self._fill_span, self._flavors)
        self.report = launcher.capture(shapes, self._progress, lambda shape: largest_batch(shape, parts.depth))
        _LOG.info("captured %d rounds, %.2f GB", self.report.captured, self.report.held / 1e9)
        return launcher

    def probing(self, machine: RoundMachine) -> Launcher:
        """A launcher for measuring rounds at start: it captures what it is asked for, when it is asked."""
        if self._padding is None:
            return EagerLauncher(machine)
        return self._launcher(machine, self._padding, lazy=True)

    def _launcher(self, machine: RoundMachine, padding: int, *, lazy: bool) -> GraphLauncher:
        tables = machine.parts.tables
        recorded = replace(machine, drafter=machine.drafter.direct())
        setting = RoundSetting(tables.device, padding, tables.max_rows - 1, tables.refresh)
        backend = self._backend or CudaGraphs(tables.device)
        return GraphLauncher(
            partial(device_round, machine), backend, setting, partial(device_round, recorded), lazy=lazy
        )
