"""From bodies to sampling parameters, without HTTP."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from paceline.core.params import SamplingParams
from paceline.server.errors import ApiError
from paceline.server.fields import ACCEPTED, REFUSED
from paceline.server.schemas_chat import ChatRequest
from paceline.server.schemas_responses import ResponsesRequest
from paceline.server.schemas_text import CompletionRequest
from paceline.server.translate import SAME, chat_options, text_options

HELLO = [{"role": "user", "content": "hi"}]
#: A value for every field that goes over as it is.
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "typical_p": 0.9,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "filter_order": "temperature_first",
    "curve": [[-9.0, -9.0], [0.0, 0.0]],
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "penalty_window": 9,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["x"],
    "logit_bias": {"5": 1.0},
    "bad_words": ["x", [5, 6]],
    "no_repeat_ngram_size": 2,
    "thinking_budget": 9,
    "min_tokens": 2,
    "stop": ["x"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "n": 2,
    "best_of": 3,
    "include_stop_str_in_output": True,
    "seed": 3,
    "logprobs_mode": "processed",
    "prompt_logprobs": 1,
    "num_draft_tokens": 2,
    "max_tokens": 9,
    "fill": True,
}
#: Fields of ``SamplingParams`` that are made of others.
MADE = {"hlg", "forced_tokens", "logprobs", "structured_outputs", "speculative", "prediction"}


def chat(**body: Any) -> SamplingParams:
    return chat_options(ChatRequest(messages=HELLO, **body)).over({})


def test_every_field_is_supported_or_said_not_to_be() -> None:
    ours = {field.name for field in fields(SamplingParams)}
    assert set(SAME) | MADE == ours
    assert set(VALUES) == set(SAME)
    assert not set(REFUSED) & set(ChatRequest.model_fields) - {"logprobs"}
    assert set(ACCEPTED) - {"strict"} <= set(ChatRequest.model_fields)
    assert {"user", "metadata", "store"} <= set(ResponsesRequest.model_fields)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_fields_that_go_over_as_they_are(name: str) -> None:
    given = {name: VALUES[name]}
    expected = SamplingParams(**given)
    assert chat(**given) == expected
    text = text_options(CompletionRequest(prompt="a", **{"max_tokens": 9, **given})).over({})
    assert getattr(text, name) == getattr(expected, name)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": False}, {}),
        ({"hlg": {"pivot": "top", "toe": 0.1}}, {"hlg": {"pivot": "top", "toe": 0.1}}),
        ({"forced_tokens": {"0": 7}}, {"forced_tokens": {0: 7}}),
        ({"structured_outputs": {"json": {"type": "object"}}}, {"structured_outputs": {"json": {"type": "object"}}}),
        ({"structured_outputs": {"choice": ["a"]}}, {"structured_outputs": {"choice": ["a"]}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"structured_outputs": {"json": {"type": "object"}}},
        ),
        ({"speculative": False}, {"speculative": False}),
        ({"speculative": {"enabled": True, "num_draft_tokens": 3}}, {"num_draft_tokens": 3}),
        ({"prediction": {"type": "content", "content": "ab"}}, {"prediction": "ab"}),
        (
            {"prediction": {"type": "content", "content": [{"type": "text", "text": t} for t in "ab"]}},
            {"prediction": "ab"},
        ),
        ({"temperature": None, "stop": None, "user": "me", "metadata": {"a": "b"}, "store": False}, {}),
    ],
)
def test_fields_that_are_made_of_others(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert chat(**body) == SamplingParams(**options)


def test_the_models_defaults_come_below() -> None:
    wanted = chat_options(ChatRequest(messages=HELLO, top_p=0.5))
    assert wanted.over({"temperature": 0.6, "top_p": 0.9, "other": 1}) == SamplingParams(temperature=0.6, top_p=0.5)


def test_text_completions_have_a_length() -> None:
    assert text_options(CompletionRequest(prompt="a")).over({}).max_tokens == 16
    echoed = text_options(CompletionRequest(prompt="a", echo=True, logprobs=2)).over({})
    assert (echoed.logprobs, echoed.prompt_logprobs) == (2, 2)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"num_draft_tokens": 1, "speculative": {"num_draft_tokens": 2}}, "num_draft_tokens"),
        ({"forced_tokens": {"x": 1}}, "forced_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"best_of": 1, "n": 2}, "best_of"),
    ],
)
def test_errors_use_the_callers_names(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert caught.value.status == 400 and caught.value.param == param
