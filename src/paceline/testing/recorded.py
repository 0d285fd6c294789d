"""A graph backend without a device: it records and replays plain functions. It knows no rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch


class _Passed:
    """Everything before it has been done."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self) -> None:
        self._log.append("wait")


class RecordedFunctions:
    """Graphs on the CPU: the result of a recorded function keeps its memory, a replay computes it anew.

    ``log``: replays and waits in order. ``refuses``: nothing can be recorded.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.log: list[str] = []
        self.held = 0
        self._refuses = refuses

    @property
    def replays(self) -> int:
        return self.log.count("replay")

    def host_buffer(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64)

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        if self._refuses:
            raise RuntimeError("nothing can be recorded here")
        run()
        result = run().clone()
        self.held += result.nbytes

        def replay() -> None:
            self.log.append("replay")
            result.copy_(run())

        return result, replay

    def mark(self) -> _Passed:
        return _Passed(self.log)

    def held_bytes(self) -> int:
        return self.held
