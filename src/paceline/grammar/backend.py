"""Grammars by llguidance: an Earley parser over lexemes whose masks come from a trie of the vocabulary. This is the
only module that knows the library; it is imported when the first grammar is compiled."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.errors import RequestError, RowFailed
from .handle import LlguidanceMatcher, Vocabulary

if TYPE_CHECKING:
    from .matcher import Matcher
    from .spec import GrammarSpec
    from .tokens import TokenizerText

#: White space that JSON may hold between two tokens of it. Bounded, so that no model can go on with it for ever.
JSON_WHITESPACE = r"[ \n\r\t]{1,64}"

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_LARK_TEMPERATURE = re.compile(r"\[[^\]\n]*\btemperature\s*=")
_LOCATION = re.compile(r"^at \d+\(\d+\): ")


def load_llguidance() -> Any:
    """The library, or :class:`RequestError` that says how to install it."""
    try:
        return import_module("llguidance")
    except ImportError as error:
        raise RequestError(
            "structured_outputs", f"grammars need llguidance ({error}); install it: pip install 'paceline[grammar]'"
        ) from None


class LlguidanceBackend:
    """Compiles for one tokenizer. ``vocab_size`` is the width of the model's logits, which may exceed the tokenizer's
    vocabulary (padded ids are never permitted) or fall short of it.

    ``eos_ids`` may end the text wherever the grammar may end and are permitted nowhere else; without any, only a
    grammar that ends by itself ends. Ids that the tokenizer calls special never stand for text.
    """

    def __init__(self, tokenizer: TokenizerText, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._library = load_llguidance()
        # The library wants an EOS id among the tokenizer's own, even where the model has none.
        known = [token for token in eos_ids if 0 <= token < tokenizer.size] or sorted(tokenizer.special_ids)[:1]
        try:
            self._tokenizer = self._library.LLTokenizer(
                tokenizer.text, n_vocab=max(vocab_size, tokenizer.size), eos_token=known or None
            )
        except Exception as error:  # the library raises bare exceptions of several types
            raise RequestError(
                "structured_outputs", f"the model's tokenizer cannot be used with grammars: {error}"
            ) from error
        no_text = tokenizer.special_ids.union(self._tokenizer.eos_tokens)
        self._vocabulary = Vocabulary(vocab_size, eos_ids, no_text)

    @property
    def open_handles(self) -> int:
        return self._vocabulary.open_handles

    def compile(self, spec: GrammarSpec) -> LlguidanceGrammar:
        """Compile, and compute the first mask so that the engine does not wait for it."""
        raw = self._library.LLMatcher(self._tokenizer, self._source(spec), log_level=0)
        if raw.is_error():
            raise RequestError(spec.field, f"cannot be used as a grammar: {_reason(raw.get_error())}")
        raw.compute_bitmask()
        if raw.is_error():
            raise RequestError(spec.field, f"is too complex: {_reason(raw.get_error())}")
        grammar = LlguidanceGrammar(raw, self._vocabulary)
        self._check_start(spec, grammar)
        return grammar

    def _check_start(self, spec: GrammarSpec, grammar: LlguidanceGrammar) -> None:
        handle = grammar.open()
        try:
            if handle.is_terminated:
                raise RequestError(spec.field, "permits the empty text only")
            handle.mask()
        except RowFailed as error:
            raise RequestError(spec.field, f"no text can satisfy it: {error}") from None
        finally:
            handle.close()

    def _source(self, spec: GrammarSpec) -> str:
        """The library's own form of a spec."""
        matcher = self._library.LLMatcher
        try:
            if spec.kind in ("json_schema", "json_object"):
                schema = json.loads(spec.text or '{"type":"object"}')
                # An author who sets the library's own options in the schema decides about white space too.
                options = {} if "x-guidance" in schema else {"whitespace_pattern": JSON_WHITESPACE}
                return str(matcher.grammar_from_json_schema(json.dumps(schema), defaults=options))
            if spec.kind == "regex":
                return str(matcher.grammar_from_regex(spec.text))
            if spec.kind == "choice":
                alternatives = " | ".join(json.dumps(choice) for choice in spec.choices)
                return str(matcher.grammar_from_lark(f"start: {alternatives}"))
            return self._grammar_source(spec)
        except ValueError as error:
            raise RequestError(spec.field, f"cannot be used as a grammar: {_reason(str(error))}") from None

    def _grammar_source(self, spec: GrammarSpec) -> str:
        if _GBNF_RULE.search(spec.text):
            return str(self._library.grammar_from("gbnf", spec.text))
        if _LARK_TEMPERATURE.search(spec.text):
            raise RequestError(spec.field, "sets a temperature for a rule; set the request's temperature instead")
        return str(self._library.LLMatcher.grammar_from_lark(spec.text))


class LlguidanceGrammar:
    """A compiled grammar: a matcher at the start of the text, of which handles are copies."""

    def __init__(self, raw: Any, vocabulary: Vocabulary) -> None:
        self._raw = raw
        self._vocabulary = vocabulary
        self._lock = threading.Lock()

    def _fresh(self) -> Any:
        with self._lock:
            return self._raw.deep_copy()

    def open(self) -> Matcher:
        return LlguidanceMatcher(self._fresh, self._vocabulary)


def _reason(message: str) -> str:
    """The first lines of a message of the library, without its dump of internal state."""
    text = message.split("<state>")[0].strip()
    text = _LOCATION.sub("", text)
    return text if len(text) <= 400 else text[:397] + "..."
