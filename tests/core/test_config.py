"""Configuration: flat names, aliases, environment, and refusals that name the setting (case S47)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError


def build(environ: dict[str, str] | None = None, **settings: Any) -> EngineConfig:
    return EngineConfig.build(environ=environ or {}, **settings)


def test_defaults_environment_and_explicit_settings_win_in_that_order() -> None:
    assert build().spec.method == "auto"
    assert build({"PACELINE_SPEC_METHOD": "none"}).spec.method == "none"
    assert build({"PACELINE_SPEC_METHOD": "none"}, spec_method="ngram").spec.method == "ngram"


def test_aliases_of_other_engines_reach_the_same_setting() -> None:
    assert build(num_draft_tokens=3).spec.tokens == 3
    assert build(speculative_num_draft_tokens=3).spec.tokens == 3
    assert build(speculative_algorithm="ngram").spec.method == "ngram"
    config = build(speculative_config='{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}')
    assert (config.spec.method, config.spec.tokens, config.spec.prompt_lookup_max) == ("ngram", 5, 4)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"spec_tokns": 3}, "spec_tokns"),
        ({"speculative_config": "{"}, "speculative_config"),
        ({"speculative_config": {"depth": 3}}, "speculative_config.depth"),
        ({"dtype": "float16"}, "dtype"),
        ({"block_size": 24}, "block_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 1.5}, "max_model_len"),
        ({"device_round": 1}, "device_round"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"op_inventory": True}, "op_inventory"),
        ({"layer_profile": True}, "layer_profile"),
        ({"enable_prefix_caching": True}, "enable_prefix_caching"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("tensor_parallel_size", 1, "1"),
        ("kv_cache_dtype", "auto", "AUTO"),
        ("draft_vocab", 0, "0"),
        ("draft_vocab", "off", "off"),
    ],
)
def test_what_asks_nothing_of_a_feature_to_come_is_taken(name: str, value: Any, text: str) -> None:
    assert build(**{name: value}) == build({f"PACELINE_{name.upper()}": text}) == build()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 2),
        ("tensor_parallel_size", True),
        ("kv_cache_dtype", "fp8"),
        ("draft_vocab", "ids.json"),
        ("tap_ring", 64),
    ],
)
def test_what_asks_for_a_feature_to_come_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        build(**{name: value})
    variable = f"PACELINE_{name.upper()}"
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        build({variable: str(value)})


@pytest.mark.parametrize(("name", "value", "text"), [("run_ahead", False, "off"), ("fill_span", 0, "0")])
def test_rounds_ahead_and_spans_can_be_switched_off(name: str, value: Any, text: str) -> None:
    config = build(**{name: value})
    assert config == build({f"PACELINE_{name.upper()}": text}) != build()
    assert config.resolved()[name] == value


@pytest.mark.parametrize("name", ["op_inventory", "layer_profile"])
def test_inventories_need_phase_timing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: needs phase_timing"):
        build(**{name: True})
    assert build(**{name: True}, phase_timing=True).resolved()[name] is True


def test_a_setting_given_twice_must_be_the_same() -> None:
    assert build(spec_tokens=3, num_draft_tokens=3).spec.tokens == 3
    with pytest.raises(ConfigError, match="num_draft_tokens: gives 4 for spec_tokens, which is also given as 3"):
        build(spec_tokens=3, num_draft_tokens=4)
    with pytest.raises(ConfigError, match="speculative_config: gives 5 for spec_tokens"):
        build(spec_tokens=3, speculative_config={"num_speculative_tokens": 5})


def test_explicit_settings_win_over_a_variable_of_several() -> None:
    variables = {"PACELINE_SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 5}'}
    config = build(variables, spec_tokens=2)
    assert (config.spec.method, config.spec.tokens) == ("ngram", 2)


def test_a_misspelt_setting_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="did you mean 'spec_tokens'"):
        build(spec_token=3)
    with pytest.raises(ConfigError, match="PACELINE_SPEC_TOKN"):
        build({"PACELINE_SPEC_TOKN": "3"})


@pytest.mark.parametrize("value", [-1, 1.9, "4", 10_000, True])
def test_s47_a_draft_length_out_of_range_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(ConfigError, match="spec_tokens"):
        build(spec_tokens=value)


@pytest.mark.parametrize("value", [0, 1, 64])
def test_s47_a_draft_length_in_range_is_taken(value: int) -> None:
    assert build(spec_tokens=value).spec.tokens == value
