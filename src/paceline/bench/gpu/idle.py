"""How long the GPU waits while rounds run, read off the profiler's trace of its kernels and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from ...core.errors import PacelineError

HOST_GAP_US = 4.0
"""Gaps longer than this lie between rounds: within a graph the next kernel starts sooner."""

SHOWN_KERNELS = 16
"""Operations listed by name, those that take the most time first."""


class Operation(NamedTuple):
    """A kernel or copy on the GPU; times in microseconds."""

    start: float
    stop: float
    name: str


@dataclass(frozen=True)
class IdleFigures:
    """Shares of the steady part of a trace. ``between``: waiting in gaps longer than :data:`HOST_GAP_US`; ``within``:
    in shorter ones, which are the device's own. ``span_ms``: length of the steady part; ``events``: operations in it.
    """

    between: float
    within: float
    span_ms: float
    events: int

    def document(self) -> dict[str, Any]:
        return asdict(self)


def traced(run: Callable[[], object]) -> list[Operation]:
    """Everything the GPU did during ``run``, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    events = trace.events() or []
    found = [
        Operation(event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type.name == "CUDA"
    ]
    if not found:
        raise PacelineError("the profiler saw nothing on the GPU")
    return sorted(found)


def steady_part(operations: Sequence[Operation], trim: float = 0.3) -> list[Operation]:
    """``operations`` (sorted by start) without the first and last ``trim`` of the time."""
    begin, end = operations[0].start, max(operation.stop for operation in operations)
    low, high = begin + trim * (end - begin), end - trim * (end - begin)
    steady = [operation for operation in operations if operation.start >= low and operation.stop <= high]
    if len(steady) < 2:
        raise PacelineError("the trace is too short to tell how long the GPU waited")
    return steady


def idle_figures(steady: Sequence[Operation]) -> IdleFigures:
    """Idle shares of operations that are sorted by start."""
    between = within = 0.0
    reached = steady[0].stop
    for start, stop, _ in steady[1:]:
        gap = start - reached
        if gap > HOST_GAP_US:
            between += gap
        elif gap > 0:
            within += gap
        reached = max(reached, stop)
    span = reached - steady[0].start
    return IdleFigures(between / span, within / span, span / 1e3, len(steady))


def kernel_shares(steady: Sequence[Operation], round_ms: float) -> list[dict[str, Any]]:
    """Where the time goes: per name the operations and microseconds of one round and the share of all busy time.

    ``round_ms``: length of a round without the profiler, from which the number of rounds in the trace follows.
    """
    span = steady[-1].stop - steady[0].start
    rounds = max(1.0, span / 1e3 / round_ms)
    totals: dict[str, list[float]] = {}
    for start, stop, name in steady:
        entry = totals.setdefault(name, [0.0, 0.0])
        entry[0] += 1
        entry[1] += stop - start
    busy = sum(time for _, time in totals.values())
    longest = sorted(totals.items(), key=lambda item: -item[1][1])
    rest = longest[SHOWN_KERNELS:]
    if rest:
        other = [sum(entry[place] for _, entry in rest) for place in (0, 1)]
        longest = [*longest[:SHOWN_KERNELS], (f"{len(rest)} others", other)]
    return [
        {"name": name, "per_round": count / rounds, "us_per_round": time / rounds, "share": time / busy}
        for name, (count, time) in longest
    ]
