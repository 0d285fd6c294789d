"""Incremental detokenisation: equal to decoding everything at once, nothing half, nothing taken back, linear cost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tokenizers_for_tests import MAKERS

from paceline.engine.detokenize import TokenDecoder

_RECORDED = "Flag 🇫🇷, family 👨‍👩‍👧, Hangul 안녕하세요, Hebrew שלום, café \ufffd and \t spaces  ."


@functools.cache
def _tokenizer(kind: str) -> Any:
    return MAKERS[kind]()


def _whole(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _pieces(decoder: TokenDecoder, tokens: Sequence[int]) -> list[str]:
    detokenizer = decoder.start()
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def _ids(kind: str) -> st.SearchStrategy[list[int]]:
    size = len(_tokenizer(kind))
    return st.lists(st.integers(0, size + 3), max_size=40)


@pytest.mark.parametrize("kind", MAKERS)
def test_any_ids_decode_as_at_once(kind: str) -> None:
    tokenizer = _tokenizer(kind)
    decoder = TokenDecoder(tokenizer)

    @given(_ids(kind))
    def check(tokens: list[int]) -> None:
        assert "".join(_pieces(decoder, tokens)) == _whole(tokenizer, tokens)

    check()


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_out_is_a_prefix_of_every_continuation(kind: str) -> None:
    tokenizer = _tokenizer(kind)
    decoder = TokenDecoder(tokenizer)

    @given(_ids(kind), _ids(kind))
    def check(tokens: list[int], more: list[int]) -> None:
        shown = "".join(_pieces(decoder, tokens)[:-1])
        assert _whole(tokenizer, [*tokens, *more]).startswith(shown)

    check()


def test_text_of_bytes_is_never_half_a_character() -> None:
    tokenizer = _tokenizer("byte_level")
    tokens = tokenizer.encode(_RECORDED)
    pieces = _pieces(TokenDecoder(tokenizer), tokens)
    assert "".join(pieces) == _RECORDED
    assert sum(piece.count("\ufffd") for piece in pieces) == 1  # the one that the text holds
    assert len([piece for piece in pieces if piece]) > 40  # it does stream


def test_bytes_that_fall_back_wait_for_the_end_of_their_run() -> None:
    tokenizer = _tokenizer("byte_fallback")
    a = tokenizer.convert_tokens_to_ids("a")
    byte = {value: tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in (0xE4, 0xBD, 0xA0, 0xFF)}
    good = [a, byte[0xE4], byte[0xBD], byte[0xA0], a]
    assert _pieces(TokenDecoder(tokenizer), good) == ["a", "", "", "", "你a", ""]
    spoilt = [a, byte[0xE4], byte[0xBD], byte[0xA0], byte[0xFF], a]
    assert "".join(_pieces(TokenDecoder(tokenizer), spoilt)) == "a\ufffd\ufffd\ufffd\ufffda"


def test_a_run_that_ends_in_half_a_character_has_the_same_tail() -> None:
    tokenizer = _tokenizer("byte_level")
    tokens = tokenizer.encode("ab€")[:-1]
    pieces = _pieces(TokenDecoder(tokenizer), tokens)
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == _whole(tokenizer, tokens)


def test_special_tokens_do_not_show_and_spaces_after_them_stay() -> None:
    tokenizer = _tokenizer("byte_fallback")
    hello, the, start = (tokenizer.convert_tokens_to_ids(piece) for piece in ("\u2581hello", "\u2581the", "<s>"))
    assert "".join(_pieces(TokenDecoder(tokenizer), [start, hello, start, start, the])) == "hello the"


class _Counting(TokenDecoder):
    """Counts how many ids are decoded in all."""

    decoded = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        return super().decode(tokens)


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
@pytest.mark.parametrize("pattern", ["words", "specials", "unknown", "broken"])
def test_cost_is_linear(kind: str, pattern: str) -> None:
    tokenizer = _tokenizer(kind)
    hello, special = tokenizer.convert_tokens_to_ids("\u2581hello"), 0
    broken = tokenizer.convert_tokens_to_ids("<0xFF>" if kind == "byte_fallback" else "\ufffd")
    unknown = len(tokenizer) + 1
    tokens = {"words": [hello], "specials": [hello, special], "unknown": [unknown], "broken": [broken]}[pattern]
    counting = _Counting(tokenizer)
    _pieces(counting, tokens * 500)
    assert counting.decoded <= 6 * 500 * len(tokens)


def test_the_property_catches_decoding_token_by_token() -> None:
    tokenizer = _tokenizer("byte_level")
    tokens = tokenizer.encode(_RECORDED)
    assert "".join(_whole(tokenizer, [token]) for token in tokens) != _whole(tokenizer, tokens)
