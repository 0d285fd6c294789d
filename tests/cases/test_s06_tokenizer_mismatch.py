"""S06: a drafter with another tokenizer is refused at start: both sizes, the first differing id and both strings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.config import EngineConfig
from paceline.core.errors import DraftError
from paceline.engine.engine import Engine
from paceline.testing.models import TinyModel, tiny_model

TARGET = TinyModel()


def drafter(path: Path, change: str) -> Path:
    """The target once more, with its tokenizer changed."""
    shutil.copytree(tiny_model(TARGET), path)
    tables: dict[str, Any] = json.loads((path / "tokenizer.json").read_text())
    model = tables["model"]
    names = {number: piece for piece, number in model["vocab"].items()}
    if change == "two ids swapped":
        model["vocab"] |= {names[100]: 101, names[101]: 100}
    elif change == "fewer tokens":
        model["vocab"] = {piece: number for piece, number in model["vocab"].items() if number < 300}
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    elif change == "a special token":
        tables["added_tokens"][1]["content"] = "<|begin|>"
        model["vocab"] = {("<|begin|>" if number == 1 else piece): number for piece, number in model["vocab"].items()}
    elif change == "one more token":
        added = tables["added_tokens"][-1] | {"id": 320, "content": "<|more|>"}
        tables["added_tokens"].append(added)
    (path / "tokenizer.json").write_text(json.dumps(tables))
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def settings(path: Path, **others: Any) -> EngineConfig:
    return EngineConfig.build(
        environ={},
        model=str(tiny_model(TARGET)),
        spec_model=str(path),
        dtype="float64",
        device="cpu",
        kv_cache_tokens=256,
        max_model_len=128,
        **others,
    )


@pytest.mark.parametrize(
    ("change", "number", "size"),
    [("two ids swapped", 100, 320), ("fewer tokens", 300, 300), ("a special token", 1, 320)],
)
def test_s06_the_load_fails_with_sizes_id_and_strings(change: str, number: int, size: int, tmp_path: Path) -> None:
    path = drafter(tmp_path / "drafter", change)
    with pytest.raises(DraftError) as caught:
        Engine.build(settings(path))
    message = str(caught.value)
    assert "tokenizer" in message and str(path) in message
    assert f"vocabulary has 320 tokens in 320 logits, the drafter's {size} tokens" in message
    found = re.search(r"token (\d+) is (.+) for the target and (.+) for the drafter", message)
    assert found is not None and int(found[1]) == number and found[2] != found[3]


def test_s06_the_command_ends_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = drafter(tmp_path / "drafter", "fewer tokens")
    model = str(tiny_model(TARGET))
    code = main(["generate", "--model", model, "--spec-model", str(path), "--device", "cpu", "hello"])
    assert code != 0
    shown = capsys.readouterr()
    assert "tokenizer" in shown.err and shown.out == ""


def test_s06_the_same_tokenizer_and_tokens_beyond_both_heads_are_accepted(tmp_path: Path) -> None:
    for change in ("nothing", "one more token"):
        Engine.build(settings(drafter(tmp_path / change, change))).close()


def test_s06_without_the_targets_tokenizer_equal_heads_are_taken_for_equal(tmp_path: Path) -> None:
    Engine.build(settings(tiny_model(TARGET), skip_tokenizer_init=True)).close()
    with pytest.raises(DraftError, match=r"cannot be compared.*320 logits.*352 logits"):
        Engine.build(settings(tiny_model(TinyModel(vocab_size=352)), skip_tokenizer_init=True))
