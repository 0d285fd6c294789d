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
        ({"spec_adaptive": True}, "spec_adaptive"),
        ({"enable_prefix_caching": True}, "enable_prefix_caching"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    assert caught.value.field == field
    assert field in str(caught.value)


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
