"""``paceline doctor``: a table for people, JSON for programs, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.testing.models import tiny_model

_SMALL = ["--kv-cache-tokens", "256", "--num-threads", "1", "--dtype", "float32"]


def test_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--num-threads", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"machine"}
    assert data["machine"]["dtype"] in {"float32", "bfloat16"}
    assert data["machine"]["dtype_reason"]


def test_a_model_is_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_model("llama"))
    assert main(["doctor", model, "--json", *_SMALL]) == 0
    memory = json.loads(capsys.readouterr().out)["model"]["memory"]
    assert memory["total"] == memory["base"] + memory["weights"] + memory["kv_cache"] + memory["transient"]
    assert memory["kv_tokens"] == 256
    assert main(["doctor", "--model", model, *_SMALL]) == 0
    table = capsys.readouterr().out
    for word in ("dtype reason", "memory · weights", "GB", "exactness", "drafter"):
        assert word in table


def test_costs_are_measured_when_asked_and_shown_from_then_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    model = str(tiny_model("llama"))
    words = ["doctor", model, "--max-num-seqs", "2", "--spec-tokens", "2", *_SMALL]
    assert main(words) == 0
    assert "window 2" not in capsys.readouterr().out
    assert main([*words, "--calibrate"]) == 0
    assert "window 3" in capsys.readouterr().out
    assert main(words) == 0
    assert "window 3" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["costs"]["plain"]["axes"][0] == [1, 2]


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "a", "--model", "b"]) == 2
    assert "model: is given twice" in capsys.readouterr().err
    assert main(["doctor", "--calibrate"]) == 2
    assert "calibrate: needs a model" in capsys.readouterr().err
    assert main(["doctor", "/no/such/model"]) == 1
    assert "/no/such/model" in capsys.readouterr().err
    assert main(["doctor", "--device", "abacus"]) == 2
    assert "device: must be auto, cpu, cuda or mps" in capsys.readouterr().err
