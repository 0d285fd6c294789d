"""Medians of what the device needs for a function, replayed as a graph where it can be. Knows no models.

On a CPU the same functions time plain calls, so that whoever measures needs no second path.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ...engine.memory import resident_bytes

Call = Callable[[], object]


def on_cuda(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"


def synchronize(device: torch.device | str) -> None:
    if on_cuda(device):
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device | str) -> None:
    """Give unused memory back and start watching anew."""
    if on_cuda(device):
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device | str) -> tuple[int, dict[str, int]]:
    """Bytes that were in use at most since :func:`forget_peak`, by anybody, and what the allocator says; on a CPU the
    process's memory now."""
    if not on_cuda(device):
        return resident_bytes(), {}
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    detail = {
        "reserved": reserved,
        "allocated": torch.cuda.memory_allocated(device),
        "most_reserved": torch.cuda.max_memory_reserved(device),
        "most_allocated": torch.cuda.max_memory_allocated(device),
        "others": total - free - reserved,
    }
    return detail["others"] + detail["most_reserved"], detail


def captured(call: Call, device: torch.device | str) -> Call:
    """``call`` as the replay of a graph; on the CPU ``call`` itself. It must work on the same memory every time."""
    if not on_cuda(device):
        return call
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        kept = call()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def median_ms(call: Call, device: torch.device | str, repeats: int = 30, warm: int = 5) -> float:
    """Median milliseconds of ``call`` by events on its stream (by the clock on a CPU)."""
    for _ in range(warm):
        call()
    return statistics.median(_times(call, device, repeats))


def _times(call: Call, device: torch.device | str, repeats: int) -> list[float]:
    if not on_cuda(device):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        return times
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) for begin, end in pairs]


def interleaved_ms(calls: Sequence[Call], device: torch.device | str, repeats: int = 15, turns: int = 3) -> list[float]:
    """Medians of several calls, each measured in ``turns`` turns, one after the other: drift hits all alike."""
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(turns):
        for place in range(len(calls)):
            chosen = (place + turn) % len(calls)
            calls[chosen]()
            found[chosen] += _times(calls[chosen], device, repeats)
    return [statistics.median(times) for times in found]
