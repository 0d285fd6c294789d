"""Options of a request that only the model's tokenizer can resolve: words, breakers and markers become token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from ..core.errors import RequestError
from ..core.params import SamplingParams
from ..fill.source import Prediction
from ..sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget

#: Markers of thinking blocks, by what models call them.
_THINKING_MARKERS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))

#: A prediction of more characters per token of the context than this is refused unread.
_CHARACTERS_PER_TOKEN = 64

#: Where DRY's repetitions end unless the request says otherwise; models whose ids are used alone have none.
_USUAL_BREAKERS = ("\n", ":", '"', "*")


class OptionResolver:
    """Builds the processor settings of requests for one model. ``tokenizer`` is ``None`` where ids only are used."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._breakers = lru_cache(maxsize=64)(self._find_breakers)

    def settings(self, params: SamplingParams, stop_ids: tuple[int, ...]) -> ProcessorSettings | None:
        """Settings of one request, ``None`` if nothing asks for a processor. ``stop_ids``: every id that ends it."""
        settings = ProcessorSettings(
            logit_bias=params.logit_bias,
            bad_words=tuple(ids for word in params.bad_words for ids in self._word(word)),
            no_repeat_ngram_size=params.no_repeat_ngram_size,
            min_tokens=params.min_tokens,
            stop_ids=stop_ids,
            forced_tokens=params.forced_tokens,
            thinking=self._thinking(params),
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            penalty_window=params.penalty_window,
            dry=self._dry(params),
        )
        if settings.is_neutral:
            return None
        settings.check_vocab(self._vocab_size)
        return settings

    def spared(self, params: SamplingParams, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Ids that XTC never drops: the model's EOS ids, and that of a newline where a tokenizer knows it."""
        return (*eos_ids, *self._newlines) if params.xtc_probability > 0 else ()

    def prediction(self, params: SamplingParams, max_tokens: int) -> Prediction | None:
        """The text that the output is expected to repeat, at most ``max_tokens`` ids; ``None`` if nothing is."""
        given = params.prediction
        if not given:
            return None
        if isinstance(given, str):
            if len(given) > _CHARACTERS_PER_TOKEN * max_tokens:
                raise RequestError("prediction", f"has {len(given)} characters, far more than {max_tokens} tokens hold")
            given = self._require("prediction").encode(given, add_special_tokens=False)
        if len(given) > max_tokens:
            raise RequestError("prediction", f"has {len(given)} tokens, but max_model_len is {max_tokens}; shorten it")
        for token in given:
            if token >= self._vocab_size:
                raise RequestError("prediction", f"{token} is not an id of the vocabulary ({self._vocab_size} ids)")
        return Prediction(given) if params.speculative else None

    @cached_property
    def _newlines(self) -> tuple[int, ...]:
        if self._tokenizer is None:
            return ()
        ids = self._tokenizer.encode("\n", add_special_tokens=False)
        return tuple(token for token in ids if self._tokenizer.decode([token]) == "\n")

    def _word(self, word: str | Sequence[int]) -> list[tuple[int, ...]]:
        """Id sequences of a banned word: as it stands, and as it stands behind a space."""
        if not isinstance(word, str):
            return [tuple(word)]
        tokenizer = self._require("bad_words")
        bare = word.lstrip(" ")
        spellings = [word, bare, f" {bare}"]
        sequences = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings if text]
        return [ids for ids in dict.fromkeys(sequences) if ids]

    def _thinking(self, params: SamplingParams) -> ThinkingBudget | None:
        if params.thinking_budget is None:
            return None
        tokenizer = self._require("thinking_budget")
        for start, end in _THINKING_MARKERS:
            ids = [tokenizer.encode(marker, add_special_tokens=False) for marker in (start, end)]
            if all(len(marker) == 1 for marker in ids):
                return ThinkingBudget(tuple(ids[0]), tuple(ids[1]), params.thinking_budget)
        raise RequestError("thinking_budget", "this model has no marker of thinking blocks (such as <think>)")

    def _dry(self, params: SamplingParams) -> DrySettings | None:
        if params.dry_multiplier == 0:
            return None
        breakers: set[int] = set()
        given = params.dry_sequence_breakers
        if given is not None:
            self._require("dry_sequence_breakers")
        for text in _USUAL_BREAKERS if given is None else given:
            ids = self._breakers(text) if self._tokenizer is not None else frozenset[int]()
            if given is not None and not ids:
                raise RequestError("dry_sequence_breakers", f"no token of this model holds {text!r}")
            breakers |= ids
        return DrySettings(
            multiplier=params.dry_multiplier,
            base=params.dry_base,
            allowed_length=params.dry_allowed_length,
            penalty_last_n=params.dry_penalty_last_n,
            breakers=frozenset(breakers),
        )

    def _find_breakers(self, text: str) -> frozenset[int]:
        """Every id whose text holds ``text``."""
        count = min(self._vocab_size, len(self._tokenizer))
        texts = self._tokenizer.batch_decode([[token] for token in range(count)])
        return frozenset(token for token, shown in enumerate(texts) if text in shown)

    def _require(self, name: str) -> Any:
        if self._tokenizer is None:
            raise RequestError(name, "needs a tokenizer, and skip_tokenizer_init is set; give token ids")
        return self._tokenizer
