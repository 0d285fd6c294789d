"""One admitted request and its abort signal. Plain records, no live state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .params import GREEDY_TEMPERATURE, SamplingParams

__all__ = ["DEVICE_EOS_IDS", "GREEDY_TEMPERATURE", "AbortSignal", "Family", "Request", "SamplingParams"]

#: Number of EOS and stop ids that live in the device tables; further ones are handled when a round is read.
DEVICE_EOS_IDS = 8


class AbortSignal:
    """One-way flag by which a caller ends its request. Set from any thread; the first reason is kept."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: str = "aborted by the caller") -> None:
        if self.reason is None:
            self.reason = reason


@dataclass(frozen=True)
class Family:
    """Requests that are samples of one prompt: ``size`` of them, this one being number ``place`` (0 = the first)."""

    id: str
    place: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this member computes the prompt that the others share."""
        return self.place == 0


@dataclass(frozen=True)
class Request:
    """One admitted request: everything resolved, nothing optional left to decide.

    ``params`` is the caller's frozen options; ``processors`` what they ask of the logits, resolved by the tokenizer
    (a record of the sampling room, ``None`` = nothing); ``xtc_spared`` ids that XTC never drops; ``grammar`` the spec
    of what the text must match and, once it is compiled, the grammar itself; ``prediction`` the text that the output
    is expected to repeat (a record of the fill room, ``None`` = no prediction), ``fill`` whether it may repeat its own
    prompt and output; both are off where ``params.speculative`` is. ``max_tokens`` fits the context; ``eos_ids`` holds
    the model's EOS ids (none with ``ignore_eos``) and the stop token ids; ``seed`` is the seed in use; ``draft_cap``
    bounds drafter proposals per round (0 = speculation off for this request).
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    eos_ids: tuple[int, ...]
    seed: int
    draft_cap: int
    abort: AbortSignal = field(default_factory=AbortSignal, compare=False)
    prefill_chunk: int | None = None
    checkpoint_at: int | None = None
    namespace: str | None = None
    family: Family | None = None
    processors: Any | None = None
    grammar: Any | None = None
    prediction: Any | None = None
    fill: bool = False
    xtc_spared: tuple[int, ...] = ()
    arrival: float = 0.0
