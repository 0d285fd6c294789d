"""``paceline bench decode --shape``: flags, the last line, files after every part, early refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main

TINY = [
    "bench",
    "decode",
    "--shape",
    "tiny",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--grid",
    "1",
    "--max-tokens",
    "48",
]


def test_the_last_line_is_the_document_and_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--report", str(tmp_path / "report.md"), "--json-file", str(tmp_path / "found.json")]
    assert main([*TINY, "--parts", "forward", *files]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out.splitlines()[-1])
    assert document["parts"]["forward"]["cells"]
    assert document["settings"]["batches"] == [1]
    assert json.loads((tmp_path / "found.json").read_text("utf-8"))["parts"].keys() == {"forward"}
    assert "## Verify forward" in (tmp_path / "report.md").read_text("utf-8")
    assert "worst of forward" in shown.out
    assert shown.err.startswith("forward: measured")


def test_a_part_that_cannot_be_measured_fails_the_command_after_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--parts", "forward,idle"]) != 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["parts"]["forward"]["cells"]
    assert "1 parts were not measured; idle: " in shown.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--parts", "everything"], "parts: must be of bandwidth"),
        (["--forced", "2"], "forced: must list probabilities"),
        (["--forced", "often"], "forced: must list numbers"),
        (["--grid", "0"], "grid: must list batches"),
        (["--spec-method", "ngram"], "spec_method: has no meaning with --shape"),
        (["--json-file", "no/such/folder/a.json"], "json_file: no/such/folder/a.json lies in a directory"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main([*TINY, *flags]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert message in told[0]


def test_flags_of_the_gpu_benchmark_need_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--forced", "0.5"]) == 2
    assert "forced: needs --shape" in capsys.readouterr().err


def test_an_unknown_shape_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--shape", "qwen9"]) == 1
    assert "qwen9: is no known shape; known are qwen3-32b" in capsys.readouterr().err
