"""``paceline bench calibrate``: a table, the JSON document last, errors before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.core.costs import CostTable
from paceline.testing.models import tiny_model


def words(*more: str) -> list[str]:
    sizes = ["--num-threads", "1", "--max-num-seqs", "2", "--kv-cache-tokens", "512", "--spec-tokens", "2"]
    return ["bench", "calibrate", "--model", str(tiny_model("llama")), "--dtype", "float32", *sizes, *more]


def test_the_last_line_is_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    assert main(words()) == 0
    shown = capsys.readouterr().out.splitlines()
    data = json.loads(shown[-1])
    assert data["kept"] is True
    assert CostTable.from_json(data["costs"]).plain(1, 64) > 0
    assert any("window 3" in line for line in shown[:-1])


def test_a_cache_that_cannot_be_written_is_no_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "file"))
    assert main(words()) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["kept"] is False


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--plot", "no/such/folder/p.png"], "plot: no/such/folder/p.png lies in a directory that does not exist"),
        (["--spec-method", "guessing"], "unknown drafter kind 'guessing'"),
        (["--spec-method", "none"], "spec_method: without a drafter there is no depth to choose"),
        (["--sped-up"], "No such option"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(words(*flags)) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert message in told[0]
