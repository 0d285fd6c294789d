"""Sampling parameters: everything a caller may ask of one request, checked where it is made. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import RequestError

#: Temperatures at or below this mean greedy decoding, everywhere (spec 13.1).
GREEDY_TEMPERATURE = 1e-5

_MAX_STOP_STRINGS = 64
_MAX_BIASES = 1024
_MAX_LOGPROBS = 1024
_MAX_SAMPLES = 128
_MAX_SEED = 2**64 - 1

#: Numbers: field -> (least, most, whether the least is excluded).
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, 100.0, True),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "dry_multiplier": (0.0, 100.0, False),
    "dry_base": (1.0, 100.0, False),
}
#: Integers: field -> (least, most, whether ``None`` is allowed).
_COUNTS: dict[str, tuple[int, int, bool]] = {
    "max_tokens": (1, 2**31, True),
    "min_tokens": (0, 2**31, False),
    "n": (1, _MAX_SAMPLES, False),
    "top_k": (-1, 2**62, False),
    "seed": (0, _MAX_SEED, True),
    "logprobs": (-1, _MAX_LOGPROBS, True),
    "prompt_logprobs": (-1, _MAX_LOGPROBS, True),
    "no_repeat_ngram_size": (0, 1024, False),
    "penalty_window": (0, 2**31, False),
    "dry_allowed_length": (1, 2**31, False),
    "dry_penalty_last_n": (-1, 2**31, False),
    "thinking_budget": (0, 2**31, True),
    "num_draft_tokens": (0, 2**31, True),
}
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "speculative")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn and when it ends.

    Every field is validated where it is set; errors name it and its range. Defaults are those of ``SamplingParams()``.

    Length and ends: ``max_tokens`` tokens at most, ``None`` = until EOS or the context ends; ``min_tokens`` before EOS
    and stop ids are allowed; ``stop`` strings end the text (cut before them unless ``include_stop_str_in_output``);
    ``stop_token_ids`` end it like EOS; ``ignore_eos``: the model's own EOS ids do not. ``n`` samples of the prompt.

    Draws: ``temperature`` (at most 1e-5 is greedy), then ``top_k`` (0 or -1 = off), ``top_p``, ``min_p``; ``seed``
    (``None`` = random, reported in the result; sample j of n draws with seed + j).

    Penalties: ``repetition_penalty`` over prompt and output, ``presence_penalty`` and ``frequency_penalty`` over the
    output, all within the last ``penalty_window`` tokens (0 = all); ``dry_*`` as in llama.cpp (``None`` = its
    breakers: newline, colon, quote, asterisk).

    Bans: ``logit_bias`` id -> number added; ``bad_words`` as strings or id lists; ``no_repeat_ngram_size`` (0 = off);
    ``forced_tokens`` output position -> id; ``thinking_budget``: most tokens inside a thinking block.

    Reports: ``logprobs`` top ids per generated token (0 = the chosen one only, -1 = all), ``prompt_logprobs`` likewise
    for the prompt; ``logprobs_mode``: of the raw logits, or after penalties and bans (``"processed"``).

    Speculation: ``num_draft_tokens`` most drafter proposals per round (``None`` = the engine's), ``speculative=False``
    = none. Neither changes a token.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str | Sequence[int]] = ()
    no_repeat_ngram_size: int = 0
    forced_tokens: Mapping[int, int] = field(default_factory=dict)
    thinking_budget: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    num_draft_tokens: int | None = None
    speculative: bool = True

    def __post_init__(self) -> None:
        for name, (least, most, open_low) in _RANGES.items():
            _check_range(name, getattr(self, name), (least, most, open_low))
        for name, (low, high, optional) in _COUNTS.items():
            if not (optional and getattr(self, name) is None):
                _check_count(name, getattr(self, name), low, high)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, f"must be true or false, not {getattr(self, name)!r}")
        if self.logprobs_mode not in ("raw", "processed"):
            raise RequestError("logprobs_mode", f"must be 'raw' or 'processed', not {self.logprobs_mode!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", f"{self.min_tokens} is more than max_tokens {self.max_tokens}")
        self._freeze("stop", _strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop or ()))
        self._freeze("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.dry_sequence_breakers is not None:
            self._freeze("dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers))
        self._freeze("logit_bias", _biases(self.logit_bias))
        self._freeze("bad_words", _words(self.bad_words))
        self._freeze("forced_tokens", _forced(self.forced_tokens))

    def _freeze(self, name: str, value: object) -> None:
        """Keep a copy that later changes by the caller cannot reach (spec 2.6)."""
        object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash((self.max_tokens, self.temperature, self.seed, self.stop, self.n))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whatever form ``stop`` was given in."""
        return tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        """Whether draws are argmax (spec 13.1)."""
        return self.temperature <= GREEDY_TEMPERATURE


def _check_range(name: str, value: object, bounds: tuple[float, float, bool]) -> None:
    least, most, open_low = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(name, f"must be a finite number, not {value!r}")
    if value < least or value > most or (open_low and value == least):
        raise RequestError(name, f"must be in {'(' if open_low else '['}{least:g}, {most:g}], not {value:g}")


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(name, f"must be an integer, not {value!r}")
    if not low <= value <= high:
        raise RequestError(name, f"must be in [{low}, {high}], not {value}")


def _strings(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(name, f"must be a list of strings, not {values!r}")
    if any(not isinstance(text, str) or not text for text in values):
        raise RequestError(name, "must hold non-empty strings")
    if len(values) > _MAX_STOP_STRINGS:
        raise RequestError(name, f"holds {len(values)} strings, at most {_MAX_STOP_STRINGS} are allowed")
    return tuple(values)


def _ids(name: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(name, f"must be a list of token ids, not {values!r}")
    for value in values:
        _check_count(name, value, 0, 2**31)
    return tuple(values)


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(name, f"must map token ids to numbers, not {value!r}")
    if len(value) > _MAX_BIASES:
        raise RequestError(name, f"has {len(value)} entries, at most {_MAX_BIASES} are allowed")
    return value


def _biases(value: object) -> dict[int, float]:
    """Ids -> numbers. JSON has string keys: digits are taken as ids, as OpenAI's clients send them."""
    biases: dict[int, float] = {}
    for key, number in _mapping("logit_bias", value).items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        _check_count("logit_bias", token, 0, 2**31)
        if number != -math.inf:
            _check_range("logit_bias", number, (-1e9, 1e9, False))
        biases[token] = float(number)
    return biases


def _words(values: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError("bad_words", "must be a list of strings or of token id lists")
    words: list[str | tuple[int, ...]] = []
    for word in values:
        words.append(word if isinstance(word, str) else _ids("bad_words", word))
        if not words[-1]:
            raise RequestError("bad_words", "must not hold an empty string or list")
    if len(words) > _MAX_BIASES:
        raise RequestError("bad_words", f"has {len(words)} entries, at most {_MAX_BIASES} are allowed")
    return tuple(words)


def _forced(value: object) -> dict[int, int]:
    forced: dict[int, int] = {}
    for position, token in _mapping("forced_tokens", value).items():
        _check_count("forced_tokens", position, 0, 2**31)
        _check_count("forced_tokens", token, 0, 2**31)
        forced[position] = int(token)
    return forced
