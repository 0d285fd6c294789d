"""The figures of grammars over a small tokenizer: every one is there and positive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.testing.tokenizer import TOKENIZER_SIZE, write_tokenizer

pytest.importorskip("llguidance", reason="the extra paceline[grammar] is not installed")

from paceline.bench.grammars import main


def test_the_last_line_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    write_tokenizer(tmp_path)
    monkeypatch.setattr("paceline.bench.grammars.measure.__defaults__", (20,))
    assert main([str(tmp_path / "tokenizer.json"), str(TOKENIZER_SIZE)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["vocab_size"] == TOKENIZER_SIZE
    assert all(figures[name] > 0 for name in ("backend_s", "compile_ms", "open_ms"))
    assert figures["long_text"].keys() == {"first_us", "last_us"} and figures["masking_ms"].keys() == {"1", "8", "40"}


def test_wrong_arguments_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "TOKENIZER_JSON" in capsys.readouterr().err
