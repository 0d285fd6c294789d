"""Draft options: the settings change what drafts are drawn with, and nothing else (spec 13.8)."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from paceline.core.errors import ConfigError
from paceline.core.request import SamplingParams
from paceline.draft.policy import draft_options

OPTIONS = SamplingParams(
    temperature=0.8,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    typical_p=0.9,
    xtc_probability=0.5,
    seed=7,
    max_tokens=9,
    stop="x",
)
OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "xtc_probability": 0.0}


def changed(options: SamplingParams) -> dict[str, object]:
    return {
        f.name: getattr(options, f.name)
        for f in dataclasses.fields(options)
        if getattr(options, f.name) != getattr(OPTIONS, f.name)
    }


def test_by_default_drafts_use_the_options_of_the_request():
    assert draft_options(OPTIONS, False) == OPTIONS


def test_greedy_drafts_have_temperature_zero_whatever_else_is_set():
    assert changed(draft_options(OPTIONS, True, temperature=0.5, filters=False)) == {"temperature": 0.0}
    assert draft_options(OPTIONS, True).greedy


@pytest.mark.parametrize("temperature", [0.0, 0.5, 100.0])
def test_a_draft_temperature_replaces_the_temperature_only(temperature):
    assert changed(draft_options(OPTIONS, False, temperature=temperature)) == {"temperature": temperature}


def test_filters_off_turns_all_filters_off():
    assert changed(draft_options(OPTIONS, False, filters=False)) == OFF


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), 101.0])
def test_a_temperature_out_of_range_names_the_setting(temperature):
    with pytest.raises(ConfigError, match="draft_temperature"):
        draft_options(OPTIONS, False, temperature=temperature)


def test_the_argument_is_never_changed_and_the_result_is_frozen():
    before = copy.deepcopy(OPTIONS)
    result = draft_options(OPTIONS, False, temperature=0.1, filters=False)
    assert before == OPTIONS
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.temperature = 1.0
