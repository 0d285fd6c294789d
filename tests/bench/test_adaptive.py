"""Figures of the depth benchmarks, from made-up times; and one run of each over a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench import adaptive, forced_cells
from paceline.bench.adaptive import ADAPTIVE, PLAIN, RANDOM, Case, Found
from paceline.core.request import SamplingParams
from paceline.testing.models import tiny_model

PARAMS = SamplingParams(max_tokens=8)


def found(times: dict[str, dict[str, float]]) -> Found:
    """One case per workload; arm -> seconds per token, the same in both repeats."""
    cases = [Case(workload, workload, (1, 2), PARAMS) for workload in times]
    seconds = {(arm, place): [value, value] for place, arms in enumerate(times.values()) for arm, value in arms.items()}
    return Found(cases, seconds, dict.fromkeys(seconds, (1, 2, 3)))


def test_adaptive_is_compared_with_the_fixed_depth_that_is_best_on_each_text() -> None:
    seen = found(
        {
            "copy": {PLAIN: 1.0, ADAPTIVE: 0.26, "fixed 2": 0.5, "fixed 8": 0.25},
            "free": {PLAIN: 1.0, ADAPTIVE: 1.0, "fixed 2": 1.25, "fixed 8": 2.0},
            RANDOM: {PLAIN: 1.0, ADAPTIVE: 1.0, "fixed 2": 2.0, "fixed 8": 4.0},
        }
    )
    lines = {line.workload: line for line in adaptive.summarise(seen, [PLAIN, ADAPTIVE, "fixed 2", "fixed 8"])}
    assert lines["copy"].best == "fixed 8"
    assert lines["copy"].against_best is not None
    assert lines["copy"].against_best.value == pytest.approx(0.25 / 0.26)
    assert lines["free"].best == PLAIN, "where every depth loses, none is the best depth"
    everything = lines["all"]
    assert everything.best == "fixed 8", "one depth for all texts; the text that never comes back is left out"
    assert everything.against_best is not None
    assert everything.against_best.value == pytest.approx((0.25 / 0.26 * 2.0) ** 0.5)


def test_unequal_tokens_show() -> None:
    seen = found({"copy": {PLAIN: 1.0, ADAPTIVE: 0.5}})
    assert seen.equal(ADAPTIVE)
    seen.tokens[ADAPTIVE, 0] = (1, 2, 4)
    assert not seen.equal(ADAPTIVE)


def test_a_run_of_the_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_model("llama"))
    arguments = ["--model", model, "--dtype", "float32", "--depths", "2", "--workloads", "json", "--limit", "1"]
    assert adaptive.main([*arguments, "--max-tokens", "6", "--repeats", "1"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["equal"] == {PLAIN: True, ADAPTIVE: True, "fixed 2": True}
    assert [line["workload"] for line in document["lines"]] == ["json", RANDOM, "all"]


def test_a_run_of_the_cells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = str(tiny_model("llama"))
    arguments = ["--model", model, "--dtype", "float32", "--rows", "2", "--rates", "0", "1", "--prompts", "1"]
    assert forced_cells.main([*arguments, "--max-tokens", "12", "--repeats", "1", "--depth", "3"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    none, all_right = document["cells"]
    assert none["accepted"] == 0.0
    assert all_right["accepted"] in (0.0, 1.0), "by coin, whatever the text"
