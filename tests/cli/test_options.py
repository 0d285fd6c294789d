"""The flag tables: every setting has a flag, every alias of the conventions is there, types agree with the records."""

from __future__ import annotations

from dataclasses import fields

from paceline.cli.options import ENGINE_FLAGS, OUTPUT_FLAGS, SAMPLING_FLAGS, Flag, given
from paceline.core.config import EngineConfig, setting_names
from paceline.core.request import SamplingParams

#: Settings that commands give by other means: an argument, the request's own seed, text that needs a tokenizer.
_NO_FLAG = {"model", "seed", "skip_tokenizer_init"}
_EXAMPLES = {int: 64, float: 0.5, bool: False}
_TEXTS = {"coupling": "gumbel", "dtype": "float32", "generation_config": "none", "speculative_config": "{}"}


def test_every_setting_has_a_flag() -> None:
    visible = {flag.name for flag in ENGINE_FLAGS if not flag.hidden}
    assert visible == (set(setting_names()) - _NO_FLAG) | {"speculative_config"}


def test_sampling_flags_are_options_of_a_request() -> None:
    names = {flag.name for flag in SAMPLING_FLAGS}
    assert names <= {option.name for option in fields(SamplingParams)}
    assert names >= {"max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"}
    assert SamplingParams() == SamplingParams(**{flag.name: flag.default for flag in SAMPLING_FLAGS if flag.default})


def test_flags_have_the_types_of_their_settings() -> None:
    for flag in ENGINE_FLAGS:
        if not flag.hidden and flag.name not in {"spec_adaptive", "enable_prefix_caching"}:
            value = _EXAMPLES.get(flag.kind, _TEXTS.get(flag.name, "x"))
            EngineConfig.build(environ={}, **{flag.name: value})


def test_the_aliases_of_the_conventions() -> None:
    spellings = {flag.name: set(flag.spellings) for flag in ENGINE_FLAGS}
    assert {"--spec-method", "--speculative-algorithm"} <= spellings["spec_method"]
    assert {"--spec-model", "--draft-model", "-md", "--speculative-draft-model"} <= spellings["spec_model"]
    assert {"--spec-tokens", "--num-draft-tokens", "--speculative-num-draft-tokens"} <= spellings["spec_tokens"]
    assert spellings["spec_adaptive"] == {"--spec-adaptive/--no-spec-adaptive"}


def test_no_flag_is_spelt_twice() -> None:
    spelt = [name for flag in (*ENGINE_FLAGS, *SAMPLING_FLAGS, *OUTPUT_FLAGS) for name in flag.spellings]
    assert len(spelt) == len(set(spelt))


def test_what_was_not_given_is_left_out() -> None:
    flags = [Flag("a", int, "", ""), Flag("b", bool, "", ""), Flag("c", list[str], "", "")]
    assert given(flags, {"a": None, "b": False, "c": [], "d": 1}) == {"b": False}
    assert given(flags, {"a": 0, "b": None, "c": ["x"]}) == {"a": 0, "c": ["x"]}
