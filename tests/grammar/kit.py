"""Grammars over a tokenizer of 320 ids for tests, and plain helpers to walk them: no clever code, so that it can be
trusted against the code under test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from paceline.grammar.spec import GrammarSpec
from paceline.testing.tokenizer import END_OF_TEXT, IM_END, build_tokenizer

pytest.importorskip("llguidance", reason="the extra paceline[grammar] is not installed")

from paceline.grammar.backend import LlguidanceBackend, LlguidanceGrammar
from paceline.grammar.bits import permitted_ids
from paceline.grammar.handle import LlguidanceMatcher
from paceline.grammar.tokens import read_tokenizer

#: No multiple of 32, and beyond the tokenizer's 320 ids: the model's vocabulary is padded.
VOCAB = 333
EOS = (IM_END, END_OF_TEXT)

A_INT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SPECS = {
    "schema": GrammarSpec("json_schema", A_INT),
    "nested": GrammarSpec(
        "json_schema",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["the", "other"]},
                "list": {"type": "array", "items": {"type": ["number", "null"]}, "maxItems": 4},
                "text": {"type": "string", "maxLength": 12},
            },
            "required": ["kind", "list"],
            "additionalProperties": False,
        },
    ),
    "object": GrammarSpec("json_object"),
    "open_end": GrammarSpec("regex", r"(ab|the )+c?"),
    "regex": GrammarSpec("regex", r"[A-Z]{2}-[0-9]{1,3}( of the people)?"),
    "choice": GrammarSpec("choice", ["a", "the", "there", "their people", 'é"\\']),
    "lark": GrammarSpec("grammar", 'start: "(" start ")" | /[a-z]{1,3}/\n'),
    "gbnf": GrammarSpec("grammar", 'root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"\n'),
}


@cache
def tokenizer() -> Any:
    return build_tokenizer()


def backend_with(eos_ids: Sequence[int], vocab_size: int = VOCAB, of: Any = None) -> LlguidanceBackend:
    """A backend of its own over ``of`` (the tokenizer above unless given)."""
    return LlguidanceBackend(read_tokenizer(of or tokenizer(), eos_ids), vocab_size, eos_ids)


@cache
def backend() -> LlguidanceBackend:
    return backend_with(EOS)


@cache
def compiled(name: str) -> LlguidanceGrammar:
    return backend().compile(SPECS[name])


def opened(spec: str | GrammarSpec) -> LlguidanceMatcher:
    """A new handle of a named or given grammar."""
    grammar = compiled(spec) if isinstance(spec, str) else backend().compile(spec)
    handle = grammar.open()
    assert isinstance(handle, LlguidanceMatcher)
    return handle


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return ids


def text_of(ids: list[int]) -> str:
    return str(tokenizer().decode([token for token in ids if token not in EOS]))


def observed(matcher: LlguidanceMatcher) -> tuple[bool, list[int], list[int]]:
    """All that can be seen of a matcher's place."""
    return matcher.is_terminated, permitted_ids(matcher.mask()), matcher.forced_tokens(16)


def replayed(spec: str, ids: list[int]) -> LlguidanceMatcher:
    """A fresh handle led to the same place, asked for nothing on the way."""
    matcher = opened(spec)
    for token in ids:
        assert matcher.accept(token)
    return matcher


def random_text(spec: str, rng: random.Random, most: int) -> list[int]:
    """Ids drawn uniformly under the masks, up to an end (its EOS included) or ``most`` ids."""
    matcher = opened(spec)
    ids: list[int] = []
    while len(ids) < most and not matcher.is_terminated:
        ids.append(rng.choice(permitted_ids(matcher.mask())))
        assert matcher.accept(ids[-1])
    matcher.close()
    return ids
