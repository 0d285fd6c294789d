"""Inspection: what it plans from two layers is what the loaded model holds, for every family and number format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import EngineConfig, ModelError
from paceline.core.costs import CostTable
from paceline.engine.build import build_engine
from paceline.engine.cost_inspection import calibrate
from paceline.engine.inspect import inspect_machine, inspect_model
from paceline.models.artifact import open_artifact
from paceline.models.binding import load_target
from paceline.testing.models import TinyModel, tiny_model

_SETTINGS = {"kv_cache_tokens": 256, "max_num_seqs": 2, "max_num_batched_tokens": 32, "num_threads": 1}


def _config(model: TinyModel, **settings: object) -> EngineConfig:
    return EngineConfig.build(environ={}, model=str(tiny_model(model)), **(_SETTINGS | settings))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("family", "layers"), [("llama", 4), ("qwen3", 3), ("llama", 1)])
def test_weights_and_promises_are_those_of_the_loaded_model(family: str, layers: int, dtype: str) -> None:
    model = TinyModel(family=family, layers=layers)
    report = inspect_model(_config(model, dtype=dtype))
    target = load_target(open_artifact(str(tiny_model(model))), dtype, "cpu", None)
    assert report["memory"]["weights"] == target.weight_bytes
    assert (report["exactness"], report["layers"]) == (target.exactness, layers)
    assert report["max_model_len"] == target.max_model_len


def test_the_report_agrees_with_the_running_engine() -> None:
    config = _config(TinyModel(), dtype="float32", spec_tokens=3)
    report = inspect_model(config)
    engine = build_engine(config, None, None)
    info = engine.info()
    engine.close()
    for name in ("model", "dtype", "exactness", "drafter", "spec_tokens", "max_model_len", "max_num_seqs"):
        assert report[name] == info[name], name
    for name in ("weights", "kv_cache", "transient", "kv_tokens", "num_blocks"):
        assert report["memory"][name] == info["memory"][name], name
    json.dumps(report)


@pytest.mark.parametrize("settings", [{}, {"device_round": True}, {"spec_method": "draft_model", "spec_tokens": 2}])
def test_costs_that_were_measured_are_found_again(
    settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    if "spec_method" in settings:
        settings = settings | {"spec_model": str(tiny_model(TinyModel(seed=1)))}
    config = _config(TinyModel(), dtype="float32", **settings)
    assert inspect_model(config)["costs"] is None
    found = calibrate(config)
    assert found.kept
    report = inspect_model(config)
    assert CostTable.from_json(report["costs"]) == found.costs
    assert inspect_model(_config(TinyModel(), dtype="float32", **(settings | {"spec_tokens": 1})))["costs"] is None
    json.dumps(report)


def test_an_engine_finds_what_was_measured_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    config = _config(TinyModel(), dtype="float32", spec_tokens=2)
    calibrate(config)
    monkeypatch.setattr("paceline.engine.calibration.measured_costs", None)
    build_engine(config, None, None).close()


def test_a_sliding_family_plans_both_pools() -> None:
    report = inspect_model(_config(TinyModel(family="gemma2", layers=4), dtype="float32"))
    assert set(report["memory"]["num_blocks"]) == {"full", "sliding"}


def test_the_machine_is_described() -> None:
    report = inspect_machine(EngineConfig.build(environ={}, dtype="float32", num_threads=1))
    assert (report["device"], report["dtype"], report["dtype_reason"]) == ("cpu", "float32", "as asked")
    assert report["threads"] == 1
    assert report["libraries"]["torch"]
    assert report["drafters"]
    assert report["drafter_auto"] in report["drafters"]
    json.dumps(report)


def test_what_cannot_run_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="no such directory"):
        inspect_model(EngineConfig.build(environ={}, model="/no/such/model"))
