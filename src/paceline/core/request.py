"""What a user asked for: sampling parameters, the request, its abort signal. Plain records, no live state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import RequestError

#: Temperatures at or below this mean greedy decoding, everywhere (spec 13.1).
GREEDY_TEMPERATURE = 1e-5

#: Number of EOS and stop ids that live in the device tables; further ones are handled when a round is read.
DEVICE_EOS_IDS = 8

_MAX_STOP_STRINGS = 64
_MAX_SEED = 2**64 - 1


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(name, f"must be a number, not {value!r}")
    if not math.isfinite(value):
        raise RequestError(name, f"must be finite, not {value!r}")
    return float(value)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(name, f"must be an integer, not {value!r}")
    return value


def _check_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    if value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise RequestError(name, f"must be in {bracket}{low:g}, {high:g}], not {value:g}")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn and when it ends.

    Fields (defaults are those of ``SamplingParams()``; every field is validated, errors name it):

    - ``max_tokens``: most tokens to generate, at least 1; ``None`` = until EOS or the context ends.
    - ``temperature``: >= 0; at most 1e-5 means greedy. ``top_p`` in (0, 1], ``top_k`` >= 1 (0 or -1 = off),
      ``min_p`` in [0, 1]: filters in that order after the temperature (top-k, top-p, min-p).
    - ``seed``: 0 .. 2**64 - 1; ``None`` = a random seed, reported in the result.
    - ``stop``: string or strings that end the text (cut before them unless ``include_stop_str_in_output``).
    - ``stop_token_ids``: ids that end the request like EOS. ``ignore_eos``: the model's EOS ids do not end it.
    - ``num_draft_tokens``: upper bound on drafter proposals per round for this request (``None`` = the engine's).
    - ``speculative``: ``False`` decodes this request without any proposals; its tokens are the same either way.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    num_draft_tokens: int | None = None
    speculative: bool = True

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_ends()
        for name in ("ignore_eos", "include_stop_str_in_output", "speculative"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, f"must be true or false, not {getattr(self, name)!r}")

    def _check_numbers(self) -> None:
        if self.max_tokens is not None and _integer("max_tokens", self.max_tokens) < 1:
            raise RequestError("max_tokens", f"must be at least 1, not {self.max_tokens}")
        _check_range("temperature", _number("temperature", self.temperature), 0.0, 100.0)
        _check_range("top_p", _number("top_p", self.top_p), 0.0, 1.0, low_open=True)
        _check_range("min_p", _number("min_p", self.min_p), 0.0, 1.0)
        if _integer("top_k", self.top_k) < -1:
            raise RequestError("top_k", f"must be -1 or 0 (off) or at least 1, not {self.top_k}")
        if self.seed is not None and not 0 <= _integer("seed", self.seed) <= _MAX_SEED:
            raise RequestError("seed", f"must be in [0, 2**64 - 1], not {self.seed}")
        if self.num_draft_tokens is not None and _integer("num_draft_tokens", self.num_draft_tokens) < 0:
            raise RequestError("num_draft_tokens", f"must be at least 0, not {self.num_draft_tokens}")

    def _check_ends(self) -> None:
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if any(not isinstance(s, str) or not s for s in strings):
            raise RequestError("stop", "must be a non-empty string or a list of non-empty strings")
        if len(strings) > _MAX_STOP_STRINGS:
            raise RequestError("stop", f"holds {len(strings)} strings, at most {_MAX_STOP_STRINGS} are allowed")
        object.__setattr__(self, "stop", strings)
        ids = tuple(self.stop_token_ids)
        if any(_integer("stop_token_ids", i) < 0 for i in ids):
            raise RequestError("stop_token_ids", "must hold ids of at least 0")
        object.__setattr__(self, "stop_token_ids", ids)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whatever form ``stop`` was given in."""
        return tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        """Whether draws are argmax (spec 13.1)."""
        return self.temperature <= GREEDY_TEMPERATURE


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

    ``params`` is the caller's frozen options. ``max_tokens`` fits the context; ``eos_ids`` holds the model's EOS ids
    (none with ``ignore_eos``) and the stop token ids; ``seed`` is the seed in use; ``draft_cap`` bounds drafter
    proposals per round (0 = speculation off for this request).
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
    arrival: float = 0.0
