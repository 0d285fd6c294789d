"""Dummy rows in device rounds: what a launched round costs from its launch to its read, by window and by draft depth.

For engines whose rounds run on the device from its columns. It goes through the engine's own launcher, so recorded
graphs are timed as graphs.
"""

from __future__ import annotations

import time

from ..core.errors import OutOfBlocks
from ..core.params import SamplingParams
from ..core.request import Request
from ..core.row import Row
from .device_round import RoundShape
from .draws import Flavor
from .launch import Launcher, RoundAsk
from .probes import DummyRows, OpenedRows
from .sweep import Point

_FLAVOR = Flavor(all_greedy=True, any_filter=False)


class LaunchProbe:
    """Device rounds of dummy rows with uploaded proposals. Calling it gives seconds of (rows, width, context)."""

    def __init__(self, launcher: Launcher, rows: DummyRows, vocab_size: int) -> None:
        self._launcher = launcher
        self._rows = rows
        self._vocab_size = vocab_size

    def __call__(self, point: Point) -> float:
        rows, width, context = point
        if not self._rows.place(rows, context, context + width):
            raise OutOfBlocks(rows, 0)
        indices = self._rows.indices[:rows]
        for index in indices:
            self._write(index, context, width)
        given = [[(31 * place + index) % self._vocab_size for place in range(width - 1)] for index in indices]
        ask = RoundAsk(indices, [0] * rows, given, RoundShape(0, width - 1, _FLAVOR))
        self._rows.wait()
        start = time.perf_counter()
        self._launcher.launch(ask).read()
        return time.perf_counter() - start

    def _write(self, index: int, context: int, width: int) -> None:
        """The columns of a row that decodes at ``context``: what the round before has advanced is put back."""
        params = SamplingParams(temperature=0.0)
        text = tuple((13 * place + index) % self._vocab_size for place in range(context))
        request = Request(f"costs-{index}", text, params, width, (), index, width - 1)
        row = Row(request, index, [*text, index % self._vocab_size], length=context, pending=index % self._vocab_size)
        self._rows.tables.write_row(row)


class LaunchedDrafts:
    """Device rounds in which the drafter drafts for opened rows. Calling it gives seconds of whole rounds at (rows,
    depth, context). What is accepted stays in the rows."""

    def __init__(self, launcher: Launcher, opened: OpenedRows) -> None:
        self._launcher = launcher
        self._opened = opened

    def __call__(self, point: Point) -> float:
        count, depth, _ = point
        rows = self._opened.rows[:count]
        for row in rows:
            self._opened.reserve(row, depth)
        ask = RoundAsk([row.index for row in rows], [depth] * count, [[] for _ in rows], RoundShape(depth, 0, _FLAVOR))
        self._opened.wait()
        start = time.perf_counter()
        figures = self._launcher.launch(ask).read()
        took = time.perf_counter() - start
        for row, (emitted, accepted, *rest) in zip(rows, figures, strict=True):
            self._opened.follow(row, rest[3 + depth : 3 + depth + emitted], accepted)
        return took
