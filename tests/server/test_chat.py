"""Chat completions: what HTTP answers equals what ``LLM.chat`` answers, streamed or not, and every document fits the
published schema."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.conftest import Served
from tests.server.kit import HELLO, answer, chunks_of, error, joined_chat, post

from paceline import SamplingParams
from paceline.server.schemas_chat import ChatChunk, ChatCompletion

PATH = "/v1/chat/completions"
OPTIONS: list[dict[str, Any]] = [
    {"max_tokens": 12, "temperature": 0},
    {"max_tokens": 16, "temperature": 1.1, "seed": 7},
    {"max_tokens": 9, "temperature": 0.8, "seed": 3, "top_p": 0.8, "top_k": 20, "n": 3},
    {"max_tokens": 20, "temperature": 1.0, "seed": 5, "stop": ["a", "e", "o"], "min_tokens": 2},
    {"max_tokens": 14, "temperature": 1.0, "seed": 5, "frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"max_tokens": 14, "temperature": 1.0, "seed": 8, "logit_bias": {"50": 9.0}, "speculative": False},
    {"max_tokens": 14, "temperature": 1.0, "seed": 8, "logit_bias": {"2": 9.0}, "bad_words": ["e", [4, 5]]},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_answers_equal_those_of_the_library(served: Served, options: dict[str, Any]) -> None:
    (expected,) = served.llm.chat(HELLO, SamplingParams(**options))
    body = {"messages": HELLO, "return_token_ids": True, **options}
    document = answer(served.client, PATH, **body)
    ChatCompletion.model_validate(document)
    for choice, one in zip(document["choices"], expected.outputs, strict=True):
        assert (choice["message"]["content"], choice["finish_reason"]) == (one.text, one.finish_reason)
        assert (choice["token_ids"], choice["stop_reason"]) == (list(one.token_ids), one.stop_reason)
    assert document["usage"]["completion_tokens"] == expected.metrics.completion_tokens
    assert document["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    assert document["prompt_token_ids"] == list(expected.prompt_token_ids)

    chunks = chunks_of(post(served.client, PATH, stream=True, **body).text)
    for place, one in enumerate(expected.outputs):
        whole = joined_chat(chunks, place)
        assert (whole["content"], whole["finish_reason"]) == (one.text, one.finish_reason)
    for chunk in chunks:
        ChatChunk.model_validate(chunk)


def test_usage_and_speculation_come_last(served: Served) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 24, "temperature": 0}
    plain = chunks_of(post(served.client, PATH, stream=True, **body).text)
    assert all("usage" not in chunk for chunk in plain)
    asked = chunks_of(post(served.client, PATH, stream=True, stream_options={"include_usage": True}, **body).text)
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    document = answer(served.client, PATH, **body)
    assert asked[-1]["choices"] == [] and asked[-1]["usage"] == document["usage"]
    assert "prompt_tokens_details" not in document["usage"]
    for figures in (plain[-1]["metrics"], asked[-1]["metrics"], document["metrics"]):
        spec = figures["speculative_decoding"]
        assert len(spec["acceptance_histogram"]) == spec["num_spec_tokens"] + 1 == 5
        assert spec["num_accepted_draft_tokens"] == sum(spec["accepted_by_position"])
        assert spec["num_draft_tokens"] > 0


@pytest.mark.parametrize(
    "switch", [{"speculative": False}, {"speculative": {"enabled": False}}, {"num_draft_tokens": 0}]
)
def test_speculation_can_be_left_out_of_one_request(served: Served, switch: dict[str, Any]) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 24, "temperature": 0}
    document, without = (answer(served.client, PATH, **body, **extra) for extra in ({}, switch))
    assert without["choices"][0]["message"] == document["choices"][0]["message"]
    assert without["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    bounded = answer(served.client, PATH, **body, speculative={"num_draft_tokens": 2})
    assert len(bounded["metrics"]["speculative_decoding"]["drafted_by_position"]) == 2


def test_log_probabilities(served: Served) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 9, "temperature": 1.0, "seed": 4}
    document = answer(served.client, PATH, logprobs=True, top_logprobs=3, return_token_ids=True, **body)
    (choice,) = document["choices"]
    scores = choice["logprobs"]["content"]
    (expected,) = served.llm.chat(HELLO, SamplingParams(max_tokens=9, seed=4, logprobs=3))
    assert expected.logprobs is not None
    for score, entry, token in zip(scores, expected.logprobs, expected.token_ids, strict=True):
        assert score["logprob"] == entry[token].logprob
        top = [item["logprob"] for item in score["top_logprobs"]]
        assert len(top) == 3 and top == sorted(top, reverse=True)
    said = b"".join(bytes(score["bytes"]) for score in scores)
    assert said.decode("utf-8", "replace") == choice["message"]["content"]
    chunks = chunks_of(post(served.client, PATH, stream=True, logprobs=True, top_logprobs=3, **body).text)
    assert joined_chat(chunks)["scores"] == scores
    assert answer(served.client, PATH, **body)["choices"][0]["logprobs"] is None
    bare = answer(served.client, PATH, logprobs=True, **body)["choices"][0]["logprobs"]["content"]
    assert [score["top_logprobs"] for score in bare] == [[]] * 9


def test_a_stream_can_say_where_its_tokens_come_from(served: Served) -> None:
    few = {str(token): 13.0 for token in (40, 77, 115, 70, 71)}  # everything repeats
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 60, "temperature": 0, "stream": True, "logit_bias": few}
    chunks = chunks_of(post(served.client, PATH, stream_options={"include_origins": True}, **body).text)
    pieces = [piece for chunk in chunks for choice in chunk["choices"] for piece in choice.get("origins", [])]
    assert "".join(piece["text"] for piece in pieces) == joined_chat(chunks)["content"]
    assert {"drafted", "plain"} <= {piece["origin"] for piece in pieces}


def test_best_of_keeps_the_likeliest(served: Served) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 8, "temperature": 1.0, "seed": 2, "n": 2, "best_of": 4}
    (expected,) = served.llm.chat(HELLO, SamplingParams(max_tokens=8, seed=2, n=2, best_of=4))
    document = answer(served.client, PATH, **body)
    assert [c["message"]["content"] for c in document["choices"]] == [one.text for one in expected.outputs]
    assert document["usage"]["completion_tokens"] == expected.metrics.completion_tokens
    assert error(served.client, PATH, 400, stream=True, **body)["param"] == "best_of"


def test_messages_go_through_the_template(served: Served) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Well", "reasoning_content": "hm"},
    ]
    document = answer(served.client, PATH, messages=said, max_tokens=1, return_token_ids=True)
    shown = served.llm.tokenizer.decode(document["prompt_token_ids"])
    assert shown == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello\nthere<|im_end|>\n"
        "<|im_start|>assistant\n<think>hm</think>Well<|im_end|>\n<|im_start|>assistant\n"
    )
    going_on = answer(
        served.client, PATH, messages=said, max_tokens=1, return_token_ids=True, continue_final_message=True
    )
    assert served.llm.tokenizer.decode(going_on["prompt_token_ids"]).endswith("</think>Well")
    opened = answer(
        served.client,
        PATH,
        messages=HELLO,
        max_tokens=1,
        return_token_ids=True,
        chat_template_kwargs={"thinking": True},
    )
    assert served.llm.tokenizer.decode(opened["prompt_token_ids"]).endswith("<think>\n")


def test_a_prediction_is_counted(served: Served) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 40, "temperature": 0}
    text = answer(served.client, PATH, **body)["choices"][0]["message"]["content"]
    document = answer(served.client, PATH, prediction={"type": "content", "content": text}, **body)
    assert document["choices"][0]["message"]["content"] == text
    details = document["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] >= 0 and details["rejected_prediction_tokens"] >= 0
    assert "completion_tokens_details" not in answer(served.client, PATH, **body)["usage"]


def test_prompt_log_probabilities(served: Served) -> None:
    document = answer(served.client, PATH, messages=HELLO, max_tokens=1, prompt_logprobs=2)
    entries = document["prompt_logprobs"]
    assert entries[0] is None and len(entries) == document["usage"]["prompt_tokens"]
    assert all(len(entry) in (2, 3) for entry in entries[1:])
