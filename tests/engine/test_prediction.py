"""Predictions from the caller to the row: read at the door, bounded, refused by name, reported in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engine.tokenizers_for_tests import byte_level

from paceline import LLM, RequestError, SamplingParams
from paceline.engine.admission import Door
from paceline.engine.options import OptionResolver
from paceline.engine.outputs import RequestMetrics
from paceline.testing.models import tiny_model

LIMIT = 32


def door(tokenizer: Any = None) -> Door:
    vocab_size = 64 if tokenizer is None else len(tokenizer)
    return Door(vocab_size, LIMIT, LIMIT, (2,), 4, OptionResolver(tokenizer, vocab_size), seed=1)


def admit(params: SamplingParams, tokenizer: Any = None) -> Any:
    return door(tokenizer).admit("r", [5, 6], params, 0.0)


def test_a_text_is_tokenised_without_special_tokens_and_ids_are_taken_as_they_are() -> None:
    tokenizer = byte_level()
    request = admit(SamplingParams(prediction="the other people"), tokenizer)
    assert request.prediction.tokens == tokenizer.encode("the other people", add_special_tokens=False)
    assert admit(SamplingParams(prediction=[7, 8, 9])).prediction.tokens == [7, 8, 9]


@pytest.mark.parametrize("nothing", [None, "", [], ()])
def test_no_prediction(nothing: Any) -> None:
    assert admit(SamplingParams(prediction=nothing), byte_level()).prediction is None


@pytest.mark.parametrize(
    ("prediction", "tokenizer", "message"),
    [
        ("text", False, "prediction: needs a tokenizer"),
        ([3] * (LIMIT + 1), False, f"prediction: has {LIMIT + 1} tokens, but max_model_len is {LIMIT}"),
        ("x" * 64 * LIMIT, True, "prediction: has .* tokens, but max_model_len"),
        ("x" * (64 * LIMIT + 1), True, "prediction: has .* characters, far more than"),
        ([64], False, "prediction: 64 is not an id of the vocabulary"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_the_door(prediction: Any, tokenizer: bool, message: str) -> None:
    for speculative in (True, False):
        with pytest.raises(RequestError, match=message) as caught:
            admit(SamplingParams(prediction=prediction, speculative=speculative), byte_level() if tokenizer else None)
        assert caught.value.field == "prediction"


@pytest.mark.parametrize("wrong", [5, [True], ["x"], [-1], 2.5])
def test_what_is_no_prediction_is_refused_where_it_is_set(wrong: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(prediction=wrong)
    assert caught.value.field == "prediction"


def test_without_speculation_there_is_nothing_to_follow() -> None:
    request = admit(SamplingParams(prediction=[7, 8], fill=True, speculative=False))
    assert (request.prediction, request.fill) == (None, False)
    assert admit(SamplingParams(fill=True)).fill


def test_samples_share_the_prediction() -> None:
    first, second = door().admit_samples("r", [5], SamplingParams(prediction=[7, 8], n=2), 2, 0.0)
    assert first.prediction is second.prediction


def test_later_changes_of_the_callers_list_do_not_reach_the_request() -> None:
    ids = [7, 8, 9]
    params = SamplingParams(prediction=ids)
    ids.append(10)
    assert params.prediction == (7, 8, 9)


def test_counts_of_samples_add_up() -> None:
    with LLM(str(tiny_model("llama")), dtype="float32", spec_method="none", num_threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        plain = llm.generate("the people", params)[0]
        predicted = llm.generate("the people", replace(params, prediction=plain.token_ids))[0]
        both = llm.generate("the people", replace(params, prediction=plain.token_ids, n=2))[0]
        spoken = llm.generate("the people", replace(params, prediction=plain.text))[0]
    assert predicted.token_ids == spoken.token_ids == plain.token_ids
    assert plain.metrics.accepted_prediction_tokens == plain.metrics.rejected_prediction_tokens == 0
    assert predicted.metrics.accepted_prediction_tokens >= 20
    assert predicted.metrics.speculative_decoding.forwards < 8
    assert predicted.metrics.speculative_decoding.num_draft_tokens == 0, "spans are no drafts"
    assert both.metrics.accepted_prediction_tokens == 2 * predicted.metrics.accepted_prediction_tokens
    assert predicted.to_dict()["metrics"]["accepted_prediction_tokens"] >= 20
    assert isinstance(both.metrics, RequestMetrics)
