"""Diagnosis of synchronous rounds (spec 17.6, 17.7): milliseconds by phase, counts of operations, milliseconds by part
of the target. It is told where phases end. All of it slows rounds down; without it a :class:`NullClock` costs nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.config import RuntimeConfig
from ..core.row import Row
from ..core.stats import EngineStats

if TYPE_CHECKING:
    from ..models.binding import TargetBinding

#: In the order in which a round goes through them.
Phase = Literal["draft", "verify", "sample", "commit"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "sample", "commit")

Barrier = Callable[[], None]


class PhaseTool(Protocol):
    """Something that looks into phases while they run."""

    def during(self, phase: Phase) -> AbstractContextManager[object]:
        """What is entered for as long as a phase runs."""
        ...

    def report(self, stats: EngineStats) -> None:
        """Write what was found so far into the engine's figures."""
        ...


class NullClock:
    """Measures nothing. See :class:`PhaseClock` for what the calls mean."""

    on = False

    def plan(self) -> None:
        return None

    def start(self, rows: Sequence[Row]) -> None:
        return None

    def mark(self, phase: Phase) -> None:
        return None

    def resume(self) -> None:
        return None


NULL_CLOCK = NullClock()


class PhaseClock(NullClock):
    """Times the phases of one synchronous round after the other.

    Call :meth:`plan` before a round is planned, for drafters may be asked then: that belongs to the draft;
    :meth:`start` with the round's rows before the draft; :meth:`mark` with its name where a phase ends, which is where
    the next one begins; and :meth:`resume` after delivery, whose time no phase gets. The mark of the commit ends the
    round: each row is charged its whole time, those that ended in it too, and the engine once. ``barrier`` waits for
    the device.
    """

    on = True

    def __init__(self, stats: EngineStats, barrier: Barrier, tools: Sequence[PhaseTool] = ()) -> None:
        self._stats = stats
        self._barrier = barrier
        self._tools = tools
        self._rows: Sequence[Row] = ()
        self._running = ExitStack()
        self._times: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._begun = 0.0
        self._planned: float | None = None

    def plan(self) -> None:
        self._barrier()
        self._planned = time.perf_counter()

    def start(self, rows: Sequence[Row]) -> None:
        self._running.close()  # what a round that failed has left open
        self._rows = list(rows)
        planning = 0.0 if self._planned is None else time.perf_counter() - self._planned
        self._planned = None
        self._times = dict.fromkeys(PHASES, 0.0) | {PHASES[0]: planning * 1e3}
        self._enter(PHASES[0])
        self.resume()

    def mark(self, phase: Phase) -> None:
        self._barrier()
        self._times[phase] += (time.perf_counter() - self._begun) * 1e3
        self._running.close()
        if phase == PHASES[-1]:
            self._charge()
        else:
            self._enter(PHASES[PHASES.index(phase) + 1])
        self.resume()

    def resume(self) -> None:
        self._barrier()
        self._begun = time.perf_counter()

    def _charge(self) -> None:
        record = {str(phase): spent for phase, spent in self._times.items()} | {"rounds": 1.0}
        for row in self._rows:
            row.spec.phase_ms = _added(row.spec.phase_ms, record)
        self._stats.phase_ms = _added(self._stats.phase_ms, record)
        for tool in self._tools:
            tool.report(self._stats)
        self._rows, self._times = (), dict.fromkeys(PHASES, 0.0)

    def _enter(self, phase: Phase) -> None:
        for tool in self._tools:
            self._running.enter_context(tool.during(phase))


class OpInventory:
    """Counts the tensor operations of drafts and of verify forwards, by name. Copies and views count like any other."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {"draft": Counter(), "verify": Counter()}
        with _Counting(Counter()):  # the first time takes a second
            torch.zeros(1)

    def during(self, phase: Phase) -> AbstractContextManager[object]:
        return _Counting(self._counts[phase]) if phase in self._counts else nullcontext()

    def report(self, stats: EngineStats) -> None:
        stats.op_counts = {phase: dict(counts) for phase, counts in self._counts.items()}


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation that reaches the dispatcher while it is entered."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


class LayerProfile:
    """Milliseconds of the target's named parts inside verify forwards, each with a barrier before and after it.

    A part includes the parts within it. The barriers distort the total: compare parts with each other, not with rounds
    that were not profiled.
    """

    def __init__(self, target: TargetBinding, barrier: Barrier) -> None:
        """Puts itself around the parts of ``target``; :meth:`detach` takes it off again."""
        self._barrier = barrier
        self._recording = False
        self._times: dict[str, float] = {}
        self._owners: list[tuple[Any, str, Any]] = []
        for name, owner, attribute in list(target.components()):
            part = getattr(owner, attribute)
            self._owners.append((owner, attribute, part))
            setattr(owner, attribute, _Timed(part, name, self))

    def during(self, phase: Phase) -> AbstractContextManager[object]:
        return self._record() if phase == "verify" else nullcontext()

    def report(self, stats: EngineStats) -> None:
        stats.layer_ms = dict(self._times)

    def detach(self) -> None:
        for owner, attribute, part in reversed(self._owners):
            setattr(owner, attribute, part)
        self._owners = []

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Run a part; its time counts while a verify forward runs."""
        if not self._recording:
            return call()
        self._barrier()
        begun = time.perf_counter()
        result = call()
        self._barrier()
        self._times[name] = self._times.get(name, 0.0) + (time.perf_counter() - begun) * 1e3
        return result

    @contextmanager
    def _record(self) -> Iterator[None]:
        self._recording = True
        try:
            yield
        finally:
            self._recording = False


class _Timed:
    """A part of the target that can be called like it and is like it otherwise."""

    def __init__(self, part: Any, name: str, profile: LayerProfile) -> None:
        self._part = part
        self._name = name
        self._profile = profile

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._profile.time(self._name, lambda: self._part(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def phase_clock(runtime: RuntimeConfig, target: TargetBinding, stats: EngineStats) -> NullClock:
    """The clock that the settings ask for."""
    if not runtime.phase_timing:
        return NULL_CLOCK
    barrier = device_barrier(target.device)
    tools: list[PhaseTool] = []
    if runtime.op_inventory:
        tools.append(OpInventory())
    if runtime.layer_profile:
        tools.append(LayerProfile(target, barrier))
    return PhaseClock(stats, barrier, tools)


def device_barrier(device: torch.device) -> Barrier:
    """Waits until the device has done all it was given; the CPU has done it when the call returns."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def _added(known: dict[str, float] | None, more: dict[str, float]) -> dict[str, float]:
    return {name: (known or {}).get(name, 0.0) + value for name, value in more.items()}
