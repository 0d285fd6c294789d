"""``--config`` of ``paceline bench decode``: what it can honour, under its flags; the rest is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.testing.models import tiny_model

_FLAGS = ["--max-tokens", "8", "--min-tokens", "2", "--repeats", "1", "--ignore-eos", "--no-peers"]


def test_settings_of_the_file_are_used_and_flags_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, config = tmp_path / "some.jsonl", tmp_path / "paceline.yaml"
    prompts.write_text('{"prompt": "one two one two one two", "category": "copy"}\n', "utf-8")
    config.write_text(f"model: {tiny_model('llama')}\ndtype: float64\nspec-method: ngram\nnum_threads: 1\n", "utf-8")
    words = ["bench", "decode", *_FLAGS, "--prompts", f"{prompts}:copy", "--config", str(config), "--dtype", "float32"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [arm["name"] for arm in document["arms"]] == ["plain float32", "ngram float32"]
    assert document["machine"]["threads"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [("max_num_seqs: 3", "max_num_seqs: has no place"), ("sampling: {seed: 3}", "sampling: has no")],
)
def test_what_the_benchmark_cannot_honour_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    config = tmp_path / "paceline.yaml"
    config.write_text(text, "utf-8")
    assert main(["bench", "decode", "--config", str(config)]) == 2
    assert f"{config}: {message}" in capsys.readouterr().err
