"""Diagnostics of whole engines: they change no token and no statistic, and what they report adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core.request import SamplingParams
from paceline.engine.llm import LLM
from paceline.engine.outputs import RequestOutput
from paceline.testing.models import tiny_model

PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 4, 9, 4, 9], [3, 1, 4, 1, 5]]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "spec_method": "ngram",
    "spec_tokens": 3,
    "kv_cache_tokens": 512,
    "max_num_seqs": 2,
    "num_threads": 1,
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    return tmp_path


def run(**settings: Any) -> tuple[list[RequestOutput], Any]:
    with LLM(str(tiny_model("llama")), **(SETTINGS | settings)) as llm:
        return llm.generate(PROMPTS, PARAMS), llm.stats()


@pytest.mark.parametrize(
    "looks", [{}, {"op_inventory": True}, {"layer_profile": True}, {"op_inventory": True, "layer_profile": True}]
)
def test_timed_phases_change_no_token(looks: dict[str, bool], cache: Path) -> None:
    plain, _ = run(spec_adaptive=False)
    timed, stats = run(spec_adaptive=False, phase_timing=True, **looks)
    assert [output.token_ids for output in timed] == [output.token_ids for output in plain]
    for output, other in zip(timed, plain, strict=True):
        figures, usual = output.metrics.speculative_decoding, other.metrics.speculative_decoding
        assert figures.acceptance_histogram == usual.acceptance_histogram
        assert usual.phase_ms is None
        assert figures.phase_ms is not None
        assert figures.phase_ms["rounds"] == figures.forwards
        assert figures.phase_ms["verify"] > 0
    assert stats.phase_ms["rounds"] == stats.rounds
    assert bool(stats.op_counts) == bool(looks.get("op_inventory"))
    assert bool(stats.layer_ms) == bool(looks.get("layer_profile"))


def test_a_shared_round_is_charged_to_each_of_its_rows(cache: Path) -> None:
    outputs, stats = run(spec_adaptive=False, phase_timing=True)
    charged = sum((output.metrics.speculative_decoding.phase_ms or {})["verify"] for output in outputs)
    assert charged > stats.phase_ms["verify"]


def test_time_saved_is_estimated_where_costs_were_measured(cache: Path) -> None:
    outputs, stats = run(spec_adaptive=True)
    saved = [output.metrics.speculative_decoding.time_saved_ms for output in outputs]
    assert all(value is not None for value in saved)
    assert sum(value or 0.0 for value in saved) == pytest.approx(stats.time_saved_ms)
    assert len(list((cache / "costs").iterdir())) == 1


def test_without_a_drafter_nothing_is_measured_and_nothing_estimated(cache: Path) -> None:
    outputs, _ = run(spec_method="none", spec_tokens=None)
    assert outputs[0].metrics.speculative_decoding.time_saved_ms is None
    assert not (cache / "costs").exists()
