"""``paceline bench``: flags, the last line, files, and errors before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.testing.models import tiny_model


def _arguments(tmp_path: Path, *more: str) -> list[str]:
    prompts = tmp_path / "some.jsonl"
    prompts.write_text('{"prompt": "one two one two one two", "category": "copy"}\n', "utf-8")
    sizes = ["--max-tokens", "8", "--min-tokens", "2", "--repeats", "2", "--threads", "1", "--ignore-eos", "--no-peers"]
    model = ["--model", str(tiny_model("llama")), "--dtype", "float32"]
    return ["bench", "decode", *model, "--prompts", f"{prompts}:copy", *sizes, *more]


def test_the_last_line_is_the_document_and_the_report_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments(tmp_path, "--report", str(tmp_path / "report.md"))) == 0
    shown = capsys.readouterr().out.splitlines()
    document = json.loads(shown[-1])
    assert document["arms"][0]["name"] == "plain float32"
    assert document["settings"]["peers"] is False
    assert document["machine"]["threads"] == 1
    assert "plain float32" in (tmp_path / "report.md").read_text("utf-8")
    assert any("plain float32" in line for line in shown[:-1])


def test_drafters_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_arguments(tmp_path, "--spec-method", "none")) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [arm["name"] for arm in document["arms"]] == ["plain float32"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repeats", "0"], "repeats: must be at least 1"),
        (["--classes", "copied"], "classes: must be of"),
        (["--report", "no/such/folder/r.md"], "report: no/such/folder/r.md lies in a directory that does not exist"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--spec-method", "guessing"], "unknown drafter kind 'guessing'"),
        (["--sped-up"], "No such option"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(_arguments(tmp_path, *flags)) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert message in told[0]


def test_bench_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "decode" in capsys.readouterr().out
