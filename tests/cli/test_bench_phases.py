"""``paceline bench decode --phases``: tables, the JSON document last, flags that mean nothing there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.testing.models import tiny_model


def words(tmp_path: Path, *more: str) -> list[str]:
    prompts = tmp_path / "some.jsonl"
    prompts.write_text('{"prompt": "one two one two one two"}\n', "utf-8")
    sizes = ["--max-tokens", "8", "--threads", "1", "--ignore-eos", "--spec-method", "none", "--phases"]
    model = ["--model", str(tiny_model("llama")), "--dtype", "float32"]
    return ["bench", "decode", *model, "--prompts", str(prompts), *sizes, *more]


def test_tables_then_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(tmp_path, "--op-inventory", "--layer-profile")) == 0
    shown = capsys.readouterr().out.splitlines()
    data = json.loads(shown[-1])
    assert data["bench"] == "decode phases"
    assert data["arms"][0]["rounds"] == 7
    text = "\n".join(shown[:-1])
    for title in ("Milliseconds per round by phase", "Operations per round", "inside verify"):
        assert title in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--report", "r.md"], "report: means nothing with --phases"),
        (["--classes", "free"], "classes: means nothing with --phases"),
        (["--peers"], "peers: means nothing with --phases"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(words(tmp_path, *flags)) == 2
    assert message in capsys.readouterr().err


def test_looks_into_phases_need_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [word for word in words(tmp_path, "--op-inventory") if word != "--phases"]
    assert main(asked) == 2
    assert "op_inventory: needs --phases" in capsys.readouterr().err
