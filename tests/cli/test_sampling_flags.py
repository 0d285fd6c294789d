"""Options of requests on the command line: every field has a flag or a reason, and what flags say reaches the field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.sampling import NO_FLAG, SAMPLING_FLAGS, option_name, option_names, sampling_options
from paceline.core.errors import RequestError
from paceline.core.params import HlgSettings, SamplingParams

_EMPTY: dict[str, Any] = {flag.name: None for flag in SAMPLING_FLAGS}
_EXAMPLES: dict[Any, Any] = {int: 3, float: 0.5, bool: True, str: "x", list[str]: ["x"], list[int]: [3]}


def _options(**values: Any) -> dict[str, Any]:
    return sampling_options(_EMPTY | values)


def test_every_field_has_a_flag_or_a_reason() -> None:
    names = {option.name for option in fields(SamplingParams)}
    targets = {flag.target for flag in SAMPLING_FLAGS}
    assert targets | NO_FLAG.keys() == names
    assert not targets & NO_FLAG.keys()
    assert all(NO_FLAG.values())


def test_flags_that_are_read_as_they_are_have_their_fields_types() -> None:
    words = {"filter_order": "temperature_last", "logprobs_mode": "processed"}
    checked = 0
    for flag in SAMPLING_FLAGS:
        if flag.read is None and not flag.part:
            value = words.get(flag.name, 1.5 if flag.name == "dry_base" else _EXAMPLES[flag.kind])
            options = _options(**{flag.name: value}) | ({"max_tokens": 9} if flag.name == "min_tokens" else {})
            assert getattr(SamplingParams(**options), flag.target) in (
                value,
                tuple(value) if flag.kind in (list[str], list[int]) else value,
            )
            checked += 1
    assert checked > 25


def test_pairs_become_mappings_and_points() -> None:
    options = _options(
        logit_bias=["5=-inf", "7=1.5"],
        forced_tokens=["0=9"],
        curve=["-10=-12", "0=0.5"],
        hlg=["pivot=top", "toe=2"],
    )
    params = SamplingParams(**options)
    assert params.logit_bias == {5: float("-inf"), 7: 1.5}
    assert params.forced_tokens == {0: 9}
    assert params.curve == ((-10.0, -12.0), (0.0, 0.5))
    assert params.hlg == HlgSettings(pivot="top", toe=2.0)


@pytest.mark.parametrize("text", ["5", "=3", "5=", "five=1", "5=one"])
def test_what_is_no_pair_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(RequestError, match="--logit-bias: must be ID=VALUE"):
        _options(logit_bias=[text])


def test_one_constraint_on_the_text() -> None:
    assert _options(regex="a+") == {"structured_outputs": {"regex": "a+"}}
    assert _options(choice=["a", "b"]) == {"structured_outputs": {"choice": ["a", "b"]}}
    assert _options(json_object=True) == {"structured_outputs": {"json_object": True}}
    with pytest.raises(RequestError, match="--regex: cannot be combined with --json-object"):
        _options(json_object=True, regex="a")


def test_options_go_by_their_fields_and_their_flags() -> None:
    assert option_name("top-p") == option_name("top_p") == option_name("--top-p") == "top_p"
    assert (option_name("temp"), option_name("max-new-tokens")) == ("temperature", "max_tokens")
    assert (option_name("speculation"), option_name("num_draft_tokens")) == ("speculative", "num_draft_tokens")
    assert set(option_names().values()) == {option.name for option in fields(SamplingParams)}
    with pytest.raises(RequestError, match="tempratur: unknown option; did you mean 'temperature'"):
        option_name("tempratur")


def test_a_prediction_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.txt"
    path.write_text("most of it\n", "utf-8")
    assert _options(prediction=str(path)) == {"prediction": "most of it\n"}
    with pytest.raises(RequestError, match=r"--prediction: .* cannot be read"):
        _options(prediction=str(tmp_path / "missing.txt"))
