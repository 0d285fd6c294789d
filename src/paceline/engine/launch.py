"""Launching device rounds and reading their figures later. A launcher uploads, runs and starts the copy back; it does
not know what the rounds are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..cache.uploads import sent
from .device_round import RoundInputs, RoundMachine, RoundShape, device_round


@dataclass(frozen=True)
class RoundAsk:
    """What one round is launched with, on the host: row ``indices``, ``depths`` for the device drafter, and proposals
    ``given`` per row (empty = the drafter's, if it runs)."""

    indices: Sequence[int]
    depths: Sequence[int]
    given: Sequence[Sequence[int]]
    shape: RoundShape


class Figures(Protocol):
    """Figures of a launched round on their way to the host."""

    def read(self) -> list[list[int]]:
        """Wait for them: one list of 5 + K + W numbers per row, in the order asked."""
        ...


class Launcher(Protocol):
    """Runs device rounds. At most two launched rounds are unread at any time."""

    def launch(self, ask: RoundAsk) -> Figures: ...


class TensorFigures:
    """Figures whose copy to the host has been queued behind the round."""

    def __init__(self, figures: torch.Tensor) -> None:
        self._host = figures
        self._done: torch.cuda.Event | None = None
        if figures.device.type == "cuda":
            self._host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
            self._host.copy_(figures, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def read(self) -> list[list[int]]:
        if self._done is not None:
            self._done.synchronize()
        figures: list[list[int]] = self._host.tolist()
        return figures


class EagerLauncher:
    """Runs a round operation by operation: on any device, and wherever no graph was captured."""

    def __init__(self, machine: RoundMachine) -> None:
        self._machine = machine
        self._device = machine.parts.tables.device

    def launch(self, ask: RoundAsk) -> Figures:
        return TensorFigures(device_round(self._machine, self._upload(ask), ask.shape))

    def _upload(self, ask: RoundAsk) -> RoundInputs:
        """All host values in one copy."""
        rows, given = len(ask.indices), ask.shape.given
        padded = [[*tokens, *[0] * (given - len(tokens))] for tokens in ask.given] if given else []
        flat = [*ask.indices, *ask.depths, *map(len, ask.given), *(token for row in padded for token in row)]
        packed = sent(torch.tensor(flat, dtype=torch.int64), self._device)
        index, depths, lengths, proposals = torch.split(packed, [rows, rows, rows, rows * given])
        return RoundInputs(index, depths, proposals.view(rows, given), lengths)
