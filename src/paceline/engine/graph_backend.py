"""What recording a round on CUDA takes: graphs over one memory pool, pinned buffers, events. Knows no rounds.

:class:`GraphBackend` is the seam: tests give the runner one that records and replays plain functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


class Mark(Protocol):
    """A point on the device's stream."""

    def wait(self) -> None:
        """Return when the device has passed the point."""
        ...


class GraphBackend(Protocol):
    """Records functions of device tensors. A recorded function reads and writes the same memory at every replay."""

    def host_buffer(self, count: int) -> torch.Tensor:
        """[count] int64 on the host, from and to which copies need no synchronisation."""
        ...

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """Run once unrecorded, then record; the result's memory and a function that computes it anew. Raises what
        recording raises; the device can be used further then."""
        ...

    def mark(self) -> Mark:
        """A mark behind all that was queued so far."""
        ...

    def held_bytes(self) -> int:
        """Bytes in use on the device, once what lies unused in the allocator has been given back."""
        ...


class CudaGraphs:
    """Captures on a stream of its own into one pool, so that graphs share the memory of their temporaries."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_buffer(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64, pin_memory=True)

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            run()  # compiles kernels and takes workspaces, neither of which may happen while capturing
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:
                _abandon(graph)
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        return result, graph.replay

    def mark(self) -> Mark:
        return _Event(torch.cuda.current_stream(self._device))

    def held_bytes(self) -> int:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed, so that the stream can be used again. What it says is a consequence of the failure."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


class _Event:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()
