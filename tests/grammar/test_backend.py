"""Compiling with the library: broken specs give reasons, tokenizers of several kinds, the missing extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tokenizers_for_tests import byte_fallback, metaspace
from tests.grammar.kit import EOS, VOCAB, backend, backend_with, ids_of, opened, tokenizer

from paceline.core.errors import ConfigError, RequestError
from paceline.grammar import backend as backend_module
from paceline.grammar.bits import permitted_ids
from paceline.grammar.spec import GrammarKind, GrammarSpec
from paceline.grammar.tokens import read_tokenizer


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("json_schema", {"type": "strng"}, "Invalid type: strng"),
        ("json_schema", {"type": "string", "pattern": "("}, "unclosed group"),
        ("json_schema", {"$ref": "#/$defs/none"}, "none"),
        ("json_schema", {"$ref": "https://example.com/schema.json"}, "example.com"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 1}, "Unsatisfiable"),
        ("json_schema", {"enum": []}, "Unsatisfiable"),
        ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("json_schema", {"type": "string", "format": "colour"}, "colour"),
        ("regex", "a(", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("regex", "()", "empty text only"),
        ("grammar", "start: missing", "missing"),
        ("grammar", "root ::= (", r"Expected '\)'"),
        ("grammar", 'start: a\na[temperature=0.5]: "x"', "sets a temperature"),
    ],
)
def test_a_broken_grammar_gives_the_reason_and_its_field(kind: GrammarKind, value: object, message: str) -> None:
    spec = GrammarSpec(kind, value, field="response_format.here")
    with pytest.raises(RequestError, match=message) as caught:
        backend().compile(spec)
    assert caught.value.field == "response_format.here"
    assert "<state>" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("choice", ['a"b', "a\\n\n\t", "\x7f\x00", "é안😀", "\u2028", "/a/i", "{%json}", "x" * 300])
def test_choices_are_taken_literally(choice: str) -> None:
    matcher = opened(GrammarSpec("choice", [choice, "zz"]))
    ids = ids_of(choice)
    assert all(matcher.accept(token) for token in ids) and matcher.is_terminated


def test_white_space_between_json_tokens_is_bounded() -> None:
    matcher = opened("schema")
    assert matcher.accept(ids_of("{")[0])
    blanks = 0
    while matcher.accept(ids_of("\n")[0]):
        blanks += 1
    assert blanks == 64


def test_a_schema_may_ask_for_compact_json() -> None:
    schema = {"type": "object", "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    matcher = opened(GrammarSpec("json_schema", schema))
    assert matcher.accept(ids_of("{")[0]) and not matcher.accept(ids_of("\n")[0])


def test_a_vocabulary_may_be_larger_or_smaller_than_the_tokenizer() -> None:
    spec = GrammarSpec("regex", "[a-z the]+")
    expected = permitted_ids(backend().compile(spec).open().mask())
    assert max(expected) >= 270
    for size in (270, 320, 321, 352, 1000):
        matcher = backend_with(EOS, size).compile(spec).open()
        assert matcher.words == (size + 31) // 32 and matcher.mask().shape == (matcher.words,)
        assert permitted_ids(matcher.mask()) == [token for token in expected if token < size]
        assert not matcher.accept(size) and (size > 300 or not matcher.accept(300))


def _like_llama() -> Any:
    """SentencePiece with byte fallback, marks put in by a normaliser."""
    from tokenizers import Tokenizer, models, normalizers
    from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581", "ab")]
    ids = {piece: place for place, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = Sequence([Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def test_sentencepiece_pieces_stand_for_their_text() -> None:
    made = _like_llama()
    compiled = backend_with([2], of=made).compile(GrammarSpec("regex", "(ab|x)( ab)*"))
    names = [made.id_to_token(token) for token in permitted_ids(compiled.open().mask())]
    assert names == ["<0x61>", "<0x78>", "a", "ab"]  # a leading mark would be a space, which the grammar lacks
    matcher = compiled.open()
    for piece in ("ab", "\u2581ab", "\u2581", "<0x61>", "b"):
        assert matcher.accept(made.token_to_id(piece))
    assert 2 in permitted_ids(matcher.mask()) and 0 not in permitted_ids(matcher.mask())
    assert matcher.accept(2) and matcher.is_terminated


def test_bytes_of_a_character_may_come_one_by_one() -> None:
    made = byte_fallback()
    matcher = backend_with([0], of=made).compile(GrammarSpec("regex", "[éü]b?")).open()
    names = {made.convert_ids_to_tokens(token) for token in permitted_ids(matcher.mask())}
    assert names == {"<0xC3>", "é"}


def test_a_tokenizer_with_metaspace_marks() -> None:
    made = metaspace()
    matcher = backend_with([0], of=made).compile(GrammarSpec("regex", "(ab| hello)+")).open()
    names = {made.convert_ids_to_tokens(token) for token in permitted_ids(matcher.mask())}
    assert names == {"a", "\u2581", "\u2581hello"}


def test_a_tokenizer_can_be_given_in_several_forms(tmp_path: Path) -> None:
    text = tokenizer().backend_tokenizer.to_str()
    path = tmp_path / "tokenizer.json"
    path.write_text(text, "utf-8")
    forms = (text, path, tokenizer(), tokenizer().backend_tokenizer)
    assert len({read_tokenizer(form) for form in forms}) == 1
    read = read_tokenizer(text)
    assert read.size == 320 and read.special_ids == {0, 1, 2, 3}


@pytest.mark.parametrize("wrong", ["no json", "[]", "{}", '{"model": 5}', 7])
def test_what_is_no_fast_tokenizer_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        read_tokenizer(wrong)


def test_a_tokenizer_the_library_cannot_read_is_refused_by_name() -> None:
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    with pytest.raises(RequestError, match="tokenizer cannot be used"):
        backend_with([0], VOCAB, made)


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(backend_module, "import_module", missing)
    with pytest.raises(RequestError, match=r"pip install 'paceline\[grammar\]'"):
        backend_with(EOS)
    assert importlib.import_module("llguidance")
