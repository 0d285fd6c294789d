"""Tokenizers: from a model directory, from another place, and rebuilt from GGUF metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.models.gguf_files import GGUFLayout, tiny_tokenizer
from tokenizers import pre_tokenizers

from paceline.core.errors import ModelError
from paceline.models.artifact import open_artifact
from paceline.models.gguf import GGUFFile
from paceline.models.gguf_tokenizer import SPLITS, gguf_tokenizer
from paceline.models.tokenizer import load_tokenizer
from paceline.testing.models import tiny_model

TEXT = "def f(x):\n\n\n    return x + 1234 # it's  2,048\té漢\r\n"


def rebuilt(tmp_path: Path, pre: str = "smollm", **changes: Any) -> Any:
    metadata = tiny_tokenizer(pre) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return gguf_tokenizer(GGUFFile(GGUFLayout(metadata).write(tmp_path / "m.gguf")))


def pieces(tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_the_tokenizer_of_a_model_directory() -> None:
    tokenizer = load_tokenizer(open_artifact(str(tiny_model())))
    assert tokenizer.is_fast
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_another_tokenizer_can_be_named(tmp_path: Path) -> None:
    artifact = open_artifact(str(tiny_model()))
    other = GGUFLayout(tiny_tokenizer()).write(tmp_path / "m.gguf")
    assert len(load_tokenizer(artifact, str(other))) == 261
    assert len(load_tokenizer(artifact, artifact.path)) == len(load_tokenizer(artifact))


@pytest.mark.parametrize("path", ["./nowhere", "empty"])
def test_a_missing_tokenizer_is_named(path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place = str(tmp_path / path) if path == "empty" else path
    with pytest.raises(ModelError, match=path):
        load_tokenizer(open_artifact(str(tiny_model())), place)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_tokenizer(open_artifact(str(tiny_model())), tmp_path)


def test_digits_stand_alone_before_the_byte_level_pattern(tmp_path: Path) -> None:
    """The pair of splitters that SmolLM2's own tokenizer has."""
    tokenizer = rebuilt(tmp_path)
    reference = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    assert pieces(tokenizer, TEXT) == [piece for piece, _ in reference.pre_tokenize_str(TEXT)]
    assert tokenizer.tokenize("x12\n\n") == ["x", "1", "2", "ĊĊ"]  # the merge "1 2" exists and must not be used
    assert rebuilt(tmp_path, "gpt-2").tokenize("x12\n\n") == ["x", "12", "ĊĊ"]


def test_special_tokens_and_template_are_kept_and_nothing_is_added(tmp_path: Path) -> None:
    tokenizer = rebuilt(tmp_path)
    assert tokenizer("<|im_start|>x<|im_end|>").input_ids == [1, tokenizer.convert_tokens_to_ids("x"), 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.apply_chat_template([{"content": "x"}], tokenize=False) == "<|im_start|>x<|im_end|>"
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""


def test_a_beginning_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    plain = rebuilt(tmp_path)("x").input_ids
    assert rebuilt(tmp_path, add_bos_token=True)("x").input_ids == [1, *plain]
    assert rebuilt(tmp_path, "llama-bpe", add_bos_token=None)("x").input_ids == [1, *plain]
    assert rebuilt(tmp_path, "llama-bpe", add_bos_token=False)("x").input_ids == plain


@pytest.mark.parametrize("pre", SPLITS)
def test_every_split_gives_back_the_text(pre: str, tmp_path: Path) -> None:
    tokenizer = rebuilt(tmp_path, pre)
    assert tokenizer.decode(tokenizer(TEXT, add_special_tokens=False).input_ids) == TEXT
    assert rebuilt(tmp_path, pre).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_digits_group_by_model(tmp_path: Path) -> None:
    assert pieces(rebuilt(tmp_path, "llama-bpe"), "12345") == ["123", "45"]
    assert pieces(rebuilt(tmp_path, "qwen2"), "12345") == ["1", "2", "3", "4", "5"]


def sentencepiece(tmp_path: Path) -> GGUFFile:
    """A file with a SentencePiece vocabulary: bytes, letters and three longer pieces."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, "▁a", "ab", "▁ab"]
    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": [float(-rank) for rank in range(len(tokens))],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | {"general.architecture": "llama"}
    return GGUFFile(GGUFLayout(metadata).write(tmp_path / "m.gguf"))


def test_sentencepiece_kinds_are_read(tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(sentencepiece(tmp_path))
    ids = tokenizer("ab abé").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "▁ab", "▁ab", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab abé"


def test_sentencepiece_kinds_name_the_extra_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise ImportError("gguf")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", absent)
    with pytest.raises(ModelError, match=r"m\.gguf.*paceline\[gguf\]"):
        gguf_tokenizer(sentencepiece(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "unheard-of"}, "'unheard-of'"),
        ({"model": "rwkv"}, "'rwkv'"),
        ({"merges": None}, "merges"),
        ({"token_type": [3]}, "do not fit"),
        ({"merges": ["1 nothing"]}, "cannot be built"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf.*{message}"):
        rebuilt(tmp_path, **changes)
