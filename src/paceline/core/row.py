"""The live state of one request as the host has read it (spec 3.2), and what the engine reports when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .round import Burst
from .stats import FillStats, SpecStats

if TYPE_CHECKING:
    from .request import Request

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(eq=False)
class Row:
    """Host mirror of one row. Only values that have been *read* stand here; the device tables may be a round ahead.

    ``index`` is the row's place in the device tables for life. ``tokens`` is the known text: prompt, then every used
    draw that was delivered; its last entry is ``pending`` once the row decodes. ``length`` counts the inputs in the
    target's state, which is the position of ``pending``. ``step`` is the index of the next draw. ``generated`` counts
    the tokens the consumer took, plus a terminal EOS. ``drafting``: it still has a drafter. ``prompt_logprobs``: one
    record per prompt token (``None`` for the first), if they were asked for. ``burst``: what stands behind the tokens
    that its consumer is being given. ``fill``: what copied spans did.
    """

    request: Request
    index: int
    tokens: list[int]
    cached_tokens: int = 0
    pending: int = -1
    step: int = 0
    length: int = 0
    generated: int = 0
    stopped: bool = False
    drafting: bool = True
    prompt_logprobs: Sequence[Any] | None = None
    burst: Burst | None = None
    spec: SpecStats = field(default_factory=SpecStats)
    fill: FillStats = field(default_factory=FillStats)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def remaining(self) -> int:
        """Token budget left, as read."""
        return self.request.max_tokens - self.generated

    @property
    def position_limit(self) -> int:
        """First position the row may never use: inputs at or past it go to the scratch block (spec 3.7)."""
        return self.prompt_tokens + self.request.max_tokens


@dataclass(frozen=True)
class Finished:
    """How a request ended. ``error`` is set for ``"error"`` and ``"abort"``; ``end_id`` is the EOS or stop id drawn."""

    reason: FinishReason
    end_id: int | None = None
    error: BaseException | None = None
