"""Live state that a group keeps for one row beside the host mirror (spec 3.3), and what the engine is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..core.ports import CacheService
from ..core.row import Row

if TYPE_CHECKING:
    import torch

    from ..cache.tables import RowTables
    from ..models.binding import TargetBinding
    from ..sampling.logprobs import PromptLogprobs


class ForcedAcceptance(Protocol):
    """Replaces draws so that proposals are accepted by coin (benchmarks only)."""

    def apply(
        self,
        draws: torch.Tensor,
        proposals: torch.Tensor,
        lengths: torch.Tensor,
        key: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """New draws [B, K + 1] from ``draws``, ``proposals`` [B, K], ``lengths`` [B]; ``key``: seed and step [B]."""
        ...


@dataclass(frozen=True)
class PrefillStep:
    """One step of a row's prefill: positions ``start`` to ``end``; ``saves`` a boundary checkpoint at ``end``."""

    start: int
    end: int
    final: bool
    saves: bool = False


@dataclass(eq=False)
class RowState:
    """``prefix_length``: prompt tokens put into state by prefill, in steps of at most ``chunk``; ``plan``: the steps
    run so far. ``committed``: inputs after the prefix that read rounds put into the target's state (only when the cache
    keeps the request). ``prompt_scores``: gathers the log-probabilities of the prompt, if they were asked for."""

    row: Row
    prefix_length: int
    chunk: int
    keeps: bool = False
    plan: list[PrefillStep] = field(default_factory=list)
    committed: list[int] | None = None
    prompt_scores: PromptLogprobs | None = None


@dataclass(frozen=True)
class EngineParts:
    """What groups share: the target, the row tables over the KV store, and the prefix cache.

    ``forced``: benchmarks only, acceptance by coin instead of by comparison.
    """

    target: TargetBinding
    tables: RowTables
    cache: CacheService
    prefill_chunk: int
    depth: int
    device_round: bool = True
    run_ahead: bool = True
    forced: ForcedAcceptance | None = None

    @property
    def span(self) -> int | None:
        """Most positions that a sliding group holds of one row: its window and one forward; ``None`` without any."""
        window = self.tables.largest_window
        return None if window is None else window + max(self.prefill_chunk, self.depth + 1)

    def free_behind_window(self, row: Row, length: int) -> None:
        """Give back what no query at ``length`` or later can see."""
        window = self.tables.largest_window
        if window is not None:
            self.tables.free_behind(row.index, length, window)


def indices_of(rows: Sequence[Row]) -> list[int]:
    return [row.index for row in rows]
