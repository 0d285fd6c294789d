"""What a request asks of the processors: frozen records, checked where they are made. Knows no history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...core.errors import RequestError


def _check_ids(name: str, ids: Sequence[object]) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise RequestError(name, f"must hold token ids (integers), not {token!r}")
        if token < 0:
            raise RequestError(name, f"must hold token ids of at least 0, not {token}")


def _check_number(name: str, value: object, low: float, high: float = math.inf, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(name, f"must be a finite number, not {value!r}")
    if value < low or value > high or (low_open and value == low):
        right = "inf)" if math.isinf(high) else f"{high:g}]"
        raise RequestError(name, f"must be in {'(' if low_open else '['}{low:g}, {right}, not {value:g}")


def _check_count(name: str, value: object, low: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise RequestError(name, f"must be an integer of at least {low}, not {value!r}")


@dataclass(frozen=True)
class ThinkingBudget:
    """At most ``budget`` tokens inside a thinking block; then the rest of ``end_ids`` is forced.

    A block opens when the text (prompt or output) ends with ``start_ids`` and closes when it ends with ``end_ids``.
    Tokens after ``start_ids`` count, also those a prompt holds already; a start inside an open block is content. A
    later block has the whole budget again.
    """

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    budget: int

    def __post_init__(self) -> None:
        _check_count("thinking_budget", self.budget)
        for name in ("start_ids", "end_ids"):
            ids = tuple(getattr(self, name))
            if not ids:
                raise RequestError("thinking_budget", f"{name} is empty: the model has no such marker")
            _check_ids("thinking_budget", ids)
            object.__setattr__(self, name, ids)


@dataclass(frozen=True)
class DrySettings:
    """DRY, "don't repeat yourself", with the names and meanings of llama.cpp.

    A token that would extend a repetition of L tokens, L >= ``allowed_length``, loses
    ``multiplier * base ** (L - allowed_length)``. ``penalty_last_n``: how far back repetitions are looked for
    (-1 = the whole text, 0 = off). ``breakers``: ids that no repetition contains and that are never penalised.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    penalty_last_n: int = -1
    breakers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _check_number("dry_multiplier", self.multiplier, 0.0)
        _check_number("dry_base", self.base, 1.0)
        _check_count("dry_allowed_length", self.allowed_length, 1)
        _check_count("dry_penalty_last_n", self.penalty_last_n, -1)
        _check_ids("dry_sequence_breakers", tuple(self.breakers))
        object.__setattr__(self, "breakers", frozenset(self.breakers))

    @property
    def is_neutral(self) -> bool:
        """Whether no logit can change."""
        return self.multiplier == 0 or self.penalty_last_n == 0


@dataclass(frozen=True)
class ProcessorSettings:
    """All processors of one request; the defaults change nothing. "Text" below is prompt + output.

    Step 1 of spec 13.1:

    - ``logit_bias``: id -> number added to its logit; -inf bans the id.
    - ``bad_words``: id sequences; the last id of one is banned where the text ends with the ids before it.
    - ``no_repeat_ngram_size`` n >= 1: an id is banned that would complete an n-gram the text holds already; 0 = off.
    - ``min_tokens``: the ``stop_ids`` (EOS ids and stop token ids) are banned until so many tokens were generated.
    - ``forced_tokens``: output position (0 = the first generated token) -> the only id allowed there. Forcing wins over
      bans, and a forced position over the thinking budget.
    - ``thinking``: see :class:`ThinkingBudget`.

    Step 2:

    - ``repetition_penalty`` r > 0: the logit of each id in the text is divided by r if positive, else multiplied by it.
    - ``frequency_penalty`` f and ``presence_penalty`` p in [-2, 2]: an id that was generated c > 0 times loses
      ``f * c + p``; the prompt does not count.
    - ``penalty_window`` w: these three see only the last w tokens of the text; 0 = all.
    - ``dry``: see :class:`DrySettings`.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int = 0
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    forced_tokens: Mapping[int, int] = field(default_factory=dict)
    thinking: ThinkingBudget | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    dry: DrySettings | None = None

    def __post_init__(self) -> None:
        self._check_bans()
        for name in ("no_repeat_ngram_size", "min_tokens", "penalty_window"):
            _check_count(name, getattr(self, name))
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, low_open=True)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)

    def _check_bans(self) -> None:
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        object.__setattr__(self, "forced_tokens", dict(self.forced_tokens))
        object.__setattr__(self, "bad_words", tuple(tuple(word) for word in self.bad_words))
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))
        _check_ids("logit_bias", tuple(self.logit_bias))
        for value in self.logit_bias.values():
            if value != -math.inf:
                _check_number("logit_bias", value, -math.inf)
        for word in self.bad_words:
            if not word:
                raise RequestError("bad_words", "must not hold an empty sequence")
            _check_ids("bad_words", word)
        _check_ids("stop_token_ids", self.stop_ids)
        for position in self.forced_tokens:
            _check_count("forced_tokens", position)
        _check_ids("forced_tokens", tuple(self.forced_tokens.values()))

    @property
    def penalises(self) -> bool:
        """Whether repetition, presence or frequency penalty can change a logit."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def is_neutral(self) -> bool:
        """Whether no logit can change, so that the row needs no processor at all."""
        bans = self.logit_bias or self.bad_words or self.no_repeat_ngram_size or self.forced_tokens
        masks_stops = self.min_tokens > 0 and self.stop_ids
        dry = self.dry is not None and not self.dry.is_neutral
        return not (bans or masks_stops or self.thinking is not None or self.penalises or dry)

    def check_vocab(self, vocab_size: int) -> None:
        """Raise :class:`RequestError` naming the field that holds an id of ``vocab_size`` or more."""
        thinking = () if self.thinking is None else self.thinking.start_ids + self.thinking.end_ids
        for name, ids in (
            ("logit_bias", tuple(self.logit_bias)),
            ("bad_words", tuple(token for word in self.bad_words for token in word)),
            ("forced_tokens", tuple(self.forced_tokens.values())),
            ("thinking_budget", thinking),
            ("stop_token_ids", self.stop_ids),
        ):
            largest = max(ids, default=-1)
            if largest >= vocab_size:
                raise RequestError(name, f"holds the id {largest}; the model's ids end at {vocab_size - 1}")
