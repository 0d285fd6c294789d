"""Sampling parameters: everything a caller may ask of one request, checked where it is made. Knows no model."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from .errors import RequestError

#: Temperatures at or below this mean greedy decoding, everywhere (spec 13.1).
GREEDY_TEMPERATURE = 1e-5

_MAX_STOP_STRINGS = 64
_MAX_BIASES = 1024
_MAX_LOGPROBS = 1024
_MAX_SAMPLES = 128
_MAX_CURVE_POINTS = 64
_MAX_SEED = 2**64 - 1

#: Numbers: field -> (least, most, whether the least is excluded).
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, True),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, False),
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
    "best_of": (1, _MAX_SAMPLES, True),
    "top_k": (-1, 2**128, False),
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
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "speculative", "fill")
#: Words: field -> those allowed.
_CHOICES: dict[str, tuple[str, ...]] = {
    "filter_order": ("temperature_first", "temperature_last"),
    "logprobs_mode": ("raw", "processed"),
}
#: Numbers of :class:`HlgSettings`, as in ``_RANGES``.
_HLG_RANGES: dict[str, tuple[float, float, bool]] = {
    "linear": (0.0, 100.0, False),
    "toe": (0.0, 100.0, False),
    "shoulder": (0.0, 100.0, False),
}
_PIVOTS = ("top", "entropy", "median")


@dataclass(frozen=True)
class HlgSettings:
    """Highlights and shadows of a distribution, bent like the ends of a film's response (``SamplingParams.hlg``).

    ``pivot``: the log-probability that stays in place: that of the likeliest id (``"top"``), the mean one, which is
    minus the entropy (``"entropy"``), or that of the id at which half of the probability is reached (``"median"``).
    ``linear``: half the width of the straight part around it, in nats, 0 to 100. ``shoulder``: how much ids above it
    are held back, ``toe``: how much ids below it are pushed down, per nat, 0 (not at all) to 100.
    """

    pivot: Literal["top", "entropy", "median"] = "entropy"
    linear: float = 1.0
    toe: float = 0.5
    shoulder: float = 0.5

    def __post_init__(self) -> None:
        if self.pivot not in _PIVOTS:
            raise RequestError("hlg", f"pivot must be one of {', '.join(_PIVOTS)}, not {self.pivot!r}")
        for name, bounds in _HLG_RANGES.items():
            _check_range("hlg", getattr(self, name), bounds, f"{name} ")

    @property
    def rolls_off(self) -> bool:
        """Whether anything is bent; if not, all that is left is the temperature."""
        return self.toe > 0 or self.shoulder > 0


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn and when it ends.

    Every field is validated where it is set; errors name it and its range. Defaults are those of ``SamplingParams()``.

    Length and ends: ``max_tokens`` tokens at most, ``None`` = until EOS or the context ends; ``min_tokens`` before EOS
    and stop ids are allowed; ``stop`` strings end the text (cut before them unless ``include_stop_str_in_output``);
    ``stop_token_ids`` end it like EOS; ``ignore_eos``: the model's own EOS ids do not. ``n`` samples of the prompt;
    with ``best_of`` so many are drawn and the n with the highest mean log-probability per token are kept.

    Draws: ``temperature`` (at most 1e-5 is greedy), then ``top_k`` (0 or -1 = off), ``top_p``, ``min_p``, ``typical_p``
    (1 = off) and XTC, which with ``xtc_probability`` drops all but the least likely of the ids whose probability is at
    least ``xtc_threshold`` (above 0.5: none); ``filter_order`` ``"temperature_last"`` is mlx-lm's: ``top_p``,
    ``min_p``, XTC, ``top_k``, then ``temperature`` (no ``typical_p``). ``curve``: control points (log-probability in,
    out), used in place of temperature and filters. ``hlg``: an :class:`HlgSettings` or its fields, used in place of
    ``top_p`` and ``top_k``. ``seed`` (``None`` = random, reported in the result; sample j of n draws with seed + j).
    Formulas: docs/sampling.md.

    Penalties: ``repetition_penalty`` over prompt and output, ``presence_penalty`` and ``frequency_penalty`` over the
    output, all within the last ``penalty_window`` tokens (0 = all); ``dry_*`` as in llama.cpp (``None`` = its
    breakers: newline, colon, quote, asterisk).

    Bans: ``logit_bias`` id -> number added; ``bad_words`` as strings or id lists; ``no_repeat_ngram_size`` (0 = off);
    ``forced_tokens`` output position -> id; ``thinking_budget``: most tokens inside a thinking block.

    Reports: ``logprobs`` top ids per generated token (0 = the chosen one only, -1 = all), ``prompt_logprobs`` likewise
    for the prompt; ``logprobs_mode``: of the raw logits, or after penalties and bans (``"processed"``).

    Grammar: ``structured_outputs``, one of ``{"json": schema}``, ``{"json_object": True}``, ``{"regex": text}``,
    ``{"choice": [texts]}``, ``{"grammar": Lark or EBNF text}``: the text must match it.

    Speculation: ``num_draft_tokens`` most drafter proposals per round (``None`` = the engine's), ``speculative=False``
    = none. ``prediction``: text (or its token ids) that most of the output is expected to repeat, as in OpenAI's API;
    ``fill``: the output may repeat long runs of the prompt and of itself. None of them changes a token.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    filter_order: Literal["temperature_first", "temperature_last"] = "temperature_first"
    curve: Sequence[Sequence[float]] | None = None
    hlg: HlgSettings | Mapping[str, Any] | None = None
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
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
    structured_outputs: Mapping[str, Any] | None = None
    num_draft_tokens: int | None = None
    speculative: bool = True
    prediction: str | Sequence[int] | None = None
    fill: bool = False

    def __post_init__(self) -> None:
        for name, (least, most, open_low) in _RANGES.items():
            _check_range(name, getattr(self, name), (least, most, open_low))
        for name, (low, high, optional) in _COUNTS.items():
            if not (optional and getattr(self, name) is None):
                _check_count(name, getattr(self, name), low, high)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, f"must be true or false, not {getattr(self, name)!r}")
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise RequestError(name, f"must be one of {', '.join(words)}, not {getattr(self, name)!r}")
        if self.typical_p < 1 and self.filter_order == "temperature_last":
            raise RequestError("typical_p", "needs filter_order temperature_first; leave one of them out")
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError("best_of", f"{self.best_of} is less than n {self.n}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", f"{self.min_tokens} is more than max_tokens {self.max_tokens}")
        self._freeze("stop", _strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop or ()))
        self._freeze("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.dry_sequence_breakers is not None:
            self._freeze("dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers))
        self._freeze("curve", _curve(self.curve))
        self._freeze("hlg", _hlg(self.hlg))
        self._freeze("logit_bias", _biases(self.logit_bias))
        self._freeze("bad_words", _words(self.bad_words))
        self._freeze("structured_outputs", copy.deepcopy(self.structured_outputs))
        self._freeze("forced_tokens", _forced(self.forced_tokens))
        self._freeze("prediction", _prediction(self.prediction))

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
    def samples(self) -> int:
        """How many samples are drawn, whatever number is kept."""
        return self.n if self.best_of is None else self.best_of

    @property
    def greedy(self) -> bool:
        """Whether draws are argmax (spec 13.1)."""
        return self.temperature <= GREEDY_TEMPERATURE


def _check_range(name: str, value: object, bounds: tuple[float, float, bool], part: str = "") -> None:
    """``part`` names what of the field is meant, with a space behind it."""
    least, most, open_low = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(name, f"{part}must be a finite number, not {value!r}")
    if value < least or value > most or (open_low and value == least):
        raise RequestError(name, f"{part}must be in {'(' if open_low else '['}{least:g}, {most:g}], not {value:g}")


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


def _prediction(value: object) -> str | tuple[int, ...] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise RequestError("prediction", f"must be text or a list of token ids, not {value!r:.80}")
    return _ids("prediction", value)


def _curve(points: object) -> tuple[tuple[float, float], ...] | None:
    """Control points, left to right and never falling: the map keeps the order of the ids."""
    if points is None:
        return None
    if isinstance(points, str) or not isinstance(points, Sequence) or not 2 <= len(points) <= _MAX_CURVE_POINTS:
        raise RequestError("curve", f"must hold 2 to {_MAX_CURVE_POINTS} pairs (log-probability in, out)")
    for point in points:
        if isinstance(point, str) or not isinstance(point, Sequence) or len(point) != 2:
            raise RequestError("curve", f"must hold pairs of numbers, not {point!r}")
        _check_range("curve", point[0], (-1000.0, 0.0, False), "a log-probability in ")
        _check_range("curve", point[1], (-1000.0, 1000.0, False), "a log-probability out ")
    curve = tuple((float(x), float(y)) for x, y in points)
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x1 - x0 < 1e-6 or y1 < y0:
            raise RequestError("curve", f"must not fall, and inputs rise by 1e-6 or more; not so at ({x1:g}, {y1:g})")
    return curve


def _hlg(settings: object) -> HlgSettings | None:
    if settings is None or isinstance(settings, HlgSettings):
        return settings
    if not isinstance(settings, Mapping):
        raise RequestError("hlg", f"must be an HlgSettings or a mapping of its fields, not {settings!r}")
    known = {setting.name for setting in fields(HlgSettings)}
    unknown = sorted(str(key) for key in settings if key not in known)
    if unknown:
        raise RequestError("hlg", f"does not know {', '.join(unknown)}; its fields are {', '.join(sorted(known))}")
    return HlgSettings(**settings)


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
