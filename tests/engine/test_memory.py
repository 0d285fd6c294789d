"""The memory plan: what it counts on the CPU and on CUDA, and which setting it blames when that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError
from paceline.engine import memory
from paceline.engine.memory import Limits, MemoryPlan, ModelFacts, plan_memory

GB = 10**9
LAYERS = 36
GROUP = BlockGroupSpec("full", tuple(LayerKV(layer, 8, 128, 128) for layer in range(LAYERS)))
FACTS = ModelFacts(
    weight_bytes=16 * GB,
    kv_groups=(GROUP,),
    kv_dtype_size=2,
    hidden_size=4096,
    intermediate_size=12288,
    vocab_size=151_936,
    max_model_len=40_960,
)


def _plan(device: str, base: int = GB, depth: int = 4, **settings: Any) -> MemoryPlan:
    config = EngineConfig.build(environ={}, **settings)
    return plan_memory(FACTS, config, Limits.of(config, device), depth, base)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A device of 140 GB on which one process holds 17 GB: its context and the weights."""
    state = {"in_use": 17 * GB, "total": 140 * GB, "spare": 0}
    monkeypatch.setattr(memory, "device_bytes", lambda device: (state["in_use"], state["total"]))
    monkeypatch.setattr(memory, "spare_bytes", lambda device: state["spare"])
    return state


@pytest.mark.usefixtures("gpu")
def test_the_pool_fills_the_share_of_the_device_that_is_left() -> None:
    plan = _plan("cuda", gpu_memory_utilization=0.5)
    per_token = GROUP.bytes_per_token(2)
    assert plan.total <= 70 * GB
    assert plan.total > 70 * GB - 32 * per_token
    assert plan.graphs > 0
    assert plan.kv_cache == plan.num_blocks["full"] * 16 * per_token


@pytest.mark.usefixtures("gpu")
def test_the_pool_is_no_larger_than_all_rows_can_use() -> None:
    plan = _plan("cuda", max_num_seqs=1)
    assert plan.kv_tokens == FACTS.max_model_len
    assert plan.total < 30 * GB


def test_gaps_that_loading_left_are_not_counted_twice(gpu: dict[str, int]) -> None:
    plan = _plan("cuda", kv_cache_tokens=4096)
    gpu["in_use"] += 2 * GB
    gpu["spare"] = 2 * GB
    assert _plan("cuda", kv_cache_tokens=4096).base == plan.base


def test_what_others_hold_on_the_device_is_counted(gpu: dict[str, int]) -> None:
    alone = _plan("cuda", gpu_memory_utilization=0.5)
    gpu["in_use"] += 20 * GB
    shared = _plan("cuda", gpu_memory_utilization=0.5)
    assert shared.base == alone.base + 20 * GB
    assert shared.kv_cache < alone.kv_cache - 19 * GB


@pytest.mark.usefixtures("gpu")
def test_deeper_rounds_and_more_rows_need_more_for_graphs() -> None:
    def graphs(rows: int, depth: int) -> int:
        return _plan("cuda", depth=depth, max_num_seqs=rows, kv_cache_tokens=4096).graphs

    assert graphs(1, 0) < graphs(1, 4) < graphs(64, 4)
    assert _plan("cuda", device_round=False, kv_cache_tokens=4096).graphs == 0
    assert _plan("cpu", max_num_seqs=1, kv_cache_tokens=64).graphs == 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"kv_cache_tokens": 10_000_000}, "kv_cache_tokens"),
        ({"gpu_memory_utilization": 0.12}, "max_model_len"),
    ],
)
def test_what_does_not_fit_names_its_setting(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match="ask for less") as caught:
        _plan("cuda", **settings)
    assert caught.value.field == field


def test_a_share_of_the_gpu_means_nothing_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization: is for CUDA; on cpu set kv_cache_tokens"):
        _plan("cpu", gpu_memory_utilization=0.5)
