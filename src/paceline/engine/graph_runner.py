"""Runs device rounds as recorded graphs, one per (bucket of rows, shape), fed and read through pinned buffers.

It knows shapes, buffers and replay; what a round does is the function it is given. A batch between two buckets is
filled with the padding row, which is not live: it writes to scratch and changes no column.
Legend: B rows, K proposals uploaded, F numbers per row of a result.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..core.errors import IntegrityError
from .graph_backend import GraphBackend, Mark, Replay

if TYPE_CHECKING:
    from .device_round import RoundInputs, RoundShape
    from .draws import Flavor
    from .launch import RoundAsk

_LOG = logging.getLogger("paceline.engine")

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Batches for which graphs are captured; the largest batch of an engine is one too."""
IN_FLIGHT = 3
"""Rounds whose figures are kept: two that run ahead of each other may be unread, one is being written."""

#: One round as a function of device tensors, safe to capture: [B, F] int64, a row of numbers per row of the batch.
RunRound = Callable[["RoundInputs", "RoundShape"], torch.Tensor]


@dataclass(frozen=True)
class RoundSetting:
    """What rounds need from around them. ``padding``: index of the row that fills batches; ``max_rows``: the largest
    batch; ``refresh``: brings the device up to date with what the host changed outside of rounds (block tables)."""

    device: torch.device
    padding: int
    max_rows: int
    refresh: Callable[[], None]


@dataclass
class CaptureReport:
    """What capturing did. ``failures``: why shapes run without a graph; ``held``: bytes the graphs took."""

    captured: int = 0
    held: int = 0
    failures: dict[RoundShape, str] = field(default_factory=dict)


@dataclass
class _Slot:
    """Pinned buffers of one round; ``turn`` tells which round they serve."""

    upload: torch.Tensor
    result: torch.Tensor
    turn: int = 0
    mark: Mark | None = None

    def free(self) -> None:
        """Wait until the device neither reads nor writes them."""
        if self.mark is not None:
            self.mark.wait()
            self.mark = None


@dataclass(frozen=True)
class _Graph:
    result: torch.Tensor
    replay: Replay


class PinnedFigures:
    """Figures of a launched round on their way to the host; an unread one is dropped by forgetting it.

    ``width``: numbers per row. ``depth``: proposals that the round was asked to have room for, ``ran``: that it had.
    """

    def __init__(self, slot: _Slot, rows: int, width: int, depth: int, ran: int) -> None:
        self._slot = slot
        self._turn = slot.turn
        self._rows = rows
        self._width = width
        self._depth = depth
        self._ran = ran

    def read(self) -> list[list[int]]:
        """Wait for the device; one list of F numbers per row, in the order asked. Raises :class:`IntegrityError` when
        the buffers serve a later round already."""
        if self._slot.turn != self._turn:
            raise IntegrityError(f"a round is read after {IN_FLIGHT} others were launched")
        self._slot.free()
        numbers: list[list[int]] = self._slot.result[: self._rows * self._width].view(self._rows, -1).tolist()
        surplus = self._ran - self._depth
        return [_narrow(row, self._depth, surplus) for row in numbers] if surplus else numbers


class GraphLauncher:
    """Launches rounds (:class:`~paceline.engine.launch.Launcher`). Not safe for concurrent use."""

    def __init__(
        self,
        run: RunRound,
        backend: GraphBackend,
        setting: RoundSetting,
        recorded: RunRound | None = None,
        lazy: bool = False,
    ) -> None:
        """``recorded``: the round as graphs hold it, if that is another function than the one that runs eagerly.
        ``lazy``: capture exactly what is launched when it is launched (for measuring at start, not for requests)."""
        self._lazy = lazy
        self._run = run
        self._recorded = recorded or run
        self._backend = backend
        self._setting = setting
        self.buckets = buckets_for(setting.max_rows)
        self._graphs: dict[tuple[int, RoundShape], _Graph] = {}
        self._wider: dict[tuple[int, Flavor], list[RoundShape]] = {}
        self._staging: dict[tuple[int, int], torch.Tensor] = {}
        self._slots: list[_Slot] = []
        self._turns = 0
        self.report = CaptureReport()

    # -- at start ----------------------------------------------------------------------------------------------------

    def capture(
        self,
        shapes: Sequence[RoundShape],
        progress: Callable[[str, int, int], None] | None = None,
        most: Callable[[RoundShape], int] | None = None,
    ) -> CaptureReport:
        """Record a graph for every bucket and shape, the widest first: the others then fit into its memory.

        A shape that cannot be recorded is logged with the reason and runs eagerly. ``most``: the largest batch for
        which a shape is of use (default: all).
        """
        report = self.report
        keys = [(rows, shape) for shape in shapes for rows in self.buckets if most is None or rows <= most(shape)]
        keys.sort(key=lambda key: -key[0] * (1 + key[1].depth))
        before = self._backend.held_bytes()
        for done, (rows, shape) in enumerate(keys):
            if progress is not None:
                progress("Capturing rounds", done, len(keys))
            if shape not in report.failures:
                self._capture_one(rows, shape, report)
        if progress is not None:
            progress("Capturing rounds", len(keys), len(keys))
        report.held = self._backend.held_bytes() - before
        return report

    def _capture_one(self, rows: int, shape: RoundShape, report: CaptureReport) -> None:
        """Of padding rows only: recording a round must change nothing."""
        static = self._static(rows, shape.given)
        static.zero_()
        static[:rows] = self._setting.padding
        self._setting.refresh()
        inputs = input_views(static, rows, shape.given)
        try:
            result, replay = self._backend.record(lambda: self._recorded(inputs, shape))
        except Exception as error:
            report.failures[shape] = f"{type(error).__name__}: {error}"
            _LOG.warning("rounds of %s run without a graph: %s", shape, report.failures[shape])
            for key in [key for key in self._graphs if key[1] == shape]:
                del self._graphs[key]
                report.captured -= 1
            return
        self._graphs[rows, shape] = _Graph(result, replay)
        report.captured += 1
        alike = self._wider.setdefault((shape.drafts, shape.flavor), [])
        if shape not in alike:
            alike.append(shape)
            alike.sort(key=lambda each: each.given)

    def _static(self, rows: int, given: int) -> torch.Tensor:
        """The device buffer of inputs. Rounds of one size share it: they follow each other on one stream."""
        if (rows, given) not in self._staging:
            count = upload_size(rows, given)
            self._staging[rows, given] = torch.zeros(count, dtype=torch.int64, device=self._setting.device)
        return self._staging[rows, given]

    # -- rounds ------------------------------------------------------------------------------------------------------

    def has_graph(self, rows: int, shape: RoundShape) -> bool:
        """Whether a batch of ``rows`` rows replays a graph."""
        return self._fitting(rows, shape) is not None

    def launch(self, ask: RoundAsk) -> PinnedFigures:
        """Queue one round: upload, round, copy of its figures. Waits for nothing but a buffer three rounds old.

        Without a graph for its shape the round runs eagerly, with the batch as it is.
        """
        count = len(ask.indices)
        if self._lazy:
            self._capture_exactly(count, ask.shape)
        rows, shape = self._fitting(count, ask.shape) or (count, ask.shape)
        graph = self._graphs.get((rows, shape))
        slot = self._next_slot()
        size = self._write_upload(slot, ask, rows, shape.given)
        self._setting.refresh()
        static = self._static(rows, shape.given)
        static.copy_(slot.upload[:size], non_blocking=True)
        if graph is None:
            result = self._run(input_views(static, rows, shape.given), shape)
        else:
            graph.replay()
            result = graph.result
        self._copy_result(slot, result[:count])
        slot.mark = self._backend.mark()
        return PinnedFigures(slot, count, result.shape[1], ask.shape.depth, shape.depth)

    def _capture_exactly(self, rows: int, shape: RoundShape) -> None:
        place = bisect_left(self.buckets, rows)
        if place == len(self.buckets) or shape in self.report.failures:
            return
        if (self.buckets[place], shape) not in self._graphs:
            self._capture_one(self.buckets[place], shape, self.report)

    def _fitting(self, rows: int, shape: RoundShape) -> tuple[int, RoundShape] | None:
        """The graph to replay: of the next bucket, with as many drafts, and no fewer columns of given proposals."""
        place = bisect_left(self.buckets, rows)
        if place == len(self.buckets):
            return None
        alike = [shape] if self._lazy else self._wider.get((shape.drafts, shape.flavor), ())
        for wider in alike:
            if wider.given >= shape.given and (wider.given == 0) == (shape.given == 0):
                key = (self.buckets[place], wider)
                if key in self._graphs:
                    return key
        return None

    def _write_upload(self, slot: _Slot, ask: RoundAsk, rows: int, given: int) -> int:
        """Fill the pinned buffer as :func:`input_views` reads it; returns how much of it is used."""
        count = len(ask.indices)
        size = upload_size(rows, given)
        if slot.upload.shape[0] < size:
            slot.upload = self._backend.host_buffer(upload_size(max(rows, self._setting.max_rows), given))
        unused, kept = [0] * (rows - count), [proposal[:given] for proposal in ask.given]
        flat = [*ask.indices, *[self._setting.padding] * len(unused), *ask.depths, *unused, *map(len, kept), *unused]
        for proposal in kept if given else ():
            flat += proposal
            flat += [0] * (given - len(proposal))
        flat += [0] * (size - len(flat))
        slot.upload.numpy()[:size] = flat
        return size

    def _copy_result(self, slot: _Slot, result: torch.Tensor) -> None:
        flat = result.reshape(-1)
        if slot.result.shape[0] < flat.shape[0]:
            slot.result = self._backend.host_buffer(max(self._setting.max_rows, len(result)) * result.shape[1])
        slot.result[: flat.shape[0]].copy_(flat, non_blocking=True)

    def _next_slot(self) -> _Slot:
        if len(self._slots) < IN_FLIGHT:
            self._slots.append(_Slot(self._backend.host_buffer(0), self._backend.host_buffer(0)))
        slot = self._slots[self._turns % IN_FLIGHT]
        slot.free()
        self._turns += 1
        slot.turn = self._turns
        return slot


def _narrow(row: list[int], depth: int, surplus: int) -> list[int]:
    """Figures of a row (five heads, K proposals, K + 1 draws) without the columns that were not asked for."""
    split = 5 + depth
    return row[:split] + row[split + surplus : split + surplus + depth + 1]


def buckets_for(max_rows: int) -> tuple[int, ...]:
    """Batch sizes to capture for an engine of ``max_rows`` rows, ascending; the last one is ``max_rows`` itself, or the
    largest of :data:`BUCKETS` if that is less (larger batches run eagerly)."""
    fitting = [rows for rows in BUCKETS if rows <= max_rows]
    if max_rows < BUCKETS[-1] and max_rows not in fitting:
        fitting.append(max_rows)
    return tuple(fitting)


def upload_size(rows: int, given: int) -> int:
    """Numbers uploaded for ``rows`` rows with up to ``given`` proposals each."""
    return rows * (3 + given)


def input_views(packed: torch.Tensor, rows: int, given: int) -> RoundInputs:
    """``packed`` [upload_size] as the inputs of a round: indices, depths, lengths, proposals row by row."""
    from .device_round import RoundInputs

    index, depths, lengths, proposals = torch.split(packed, [rows, rows, rows, rows * given])
    return RoundInputs(index, depths, proposals.view(rows, given), lengths)
