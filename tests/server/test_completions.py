"""Text completions: equal to ``LLM.generate``, for one prompt and many, with echo and scores; tokenize and back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.conftest import Served
from tests.server.kit import answer, chunks_of, error, post

from paceline import SamplingParams
from paceline.server.schemas_text import DetokenizeAnswer, TextCompletion, TokenizeAnswer

PATH = "/v1/completions"
PROMPTS: list[Any] = ["the people", [40, 77, 115, 40, 77], ["a", "the other"], [[5, 6, 7], [300]]]


@pytest.mark.parametrize("options", [{"n": 1}, {"n": 2, "stop": ["e", " t"]}])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_equal_those_of_the_library(served: Served, prompt: Any, options: dict[str, Any]) -> None:
    chosen = {"max_tokens": 11, "temperature": 1.0, "seed": 9, **options}
    expected = served.llm.generate(prompt, SamplingParams(**chosen))
    choices = [(output, one) for output in expected for one in output.outputs]
    document = answer(served.client, PATH, prompt=prompt, return_token_ids=True, **chosen)
    TextCompletion.model_validate(document)
    for place, (choice, (output, one)) in enumerate(zip(document["choices"], choices, strict=True)):
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (place, one.text, one.finish_reason)
        assert choice["token_ids"] == list(one.token_ids)
        assert choice["prompt_token_ids"] == list(output.prompt_token_ids)
    assert document["usage"]["completion_tokens"] == sum(each.metrics.completion_tokens for each in expected)
    chunks = chunks_of(post(served.client, PATH, prompt=prompt, stream=True, **chosen).text)
    for place, (_, one) in enumerate(choices):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == place]
        assert "".join(choice["text"] for choice in own) == one.text
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [one.finish_reason]
    for chunk in chunks:
        TextCompletion.model_validate(chunk)


def test_sixteen_tokens_unless_asked_for_more(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "the", "ignore_eos": True}
    assert answer(served.client, PATH, **body)["usage"]["completion_tokens"] == 16
    assert answer(served.client, PATH, **body, min_tokens=20)["usage"]["completion_tokens"] == 20


def test_echo_and_scores(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "the people", "max_tokens": 6, "temperature": 1.0, "seed": 3, "echo": True}
    (choice,) = answer(served.client, PATH, logprobs=2, **body)["choices"]
    text, scores = choice["text"], choice["logprobs"]
    assert text.startswith("the people")
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert len({len(column) for column in scores.values()}) == 1
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        if "\ufffd" not in token:
            assert text[offset : offset + len(token)] == token
    whole = [*served.llm.tokenizer.encode("the people")]
    assert len(scores["tokens"]) == len(whole) + 6
    streamed = chunks_of(post(served.client, PATH, stream=True, **body).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text


def test_streamed_scores_equal_whole_ones(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "the", "max_tokens": 12, "temperature": 1.0, "seed": 3, "logprobs": 3}
    (choice,) = answer(served.client, PATH, **body)["choices"]
    found: dict[str, list[Any]] = {name: [] for name in choice["logprobs"]}
    for chunk in chunks_of(post(served.client, PATH, stream=True, **body).text):
        for each in chunk["choices"]:
            for name, values in (each["logprobs"] or {}).items():
                found[name] += values
    assert found == choice["logprobs"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, body: dict[str, Any], param: str) -> None:
    assert error(served.client, PATH, 400, **body)["param"] == param


def test_tokenize_and_back(served: Served) -> None:
    text = "the other people, 안녕"
    found = answer(served.client, "/tokenize", prompt=text, return_token_strs=True)
    TokenizeAnswer.model_validate(found)
    assert found["tokens"] == served.llm.tokenizer.encode(text) and found["count"] == len(found["token_strs"])
    back = answer(served.client, "/detokenize", tokens=found["tokens"])
    DetokenizeAnswer.model_validate(back)
    assert back["prompt"] == text
    message = [{"role": "user", "content": "hi"}]
    chat = answer(served.client, "/v1/chat/completions", messages=message, max_tokens=1, return_token_ids=True)
    assert answer(served.client, "/tokenize", messages=message)["tokens"] == chat["prompt_token_ids"]
    assert error(served.client, "/tokenize", 400, prompt="a", messages=message)["param"] is None
    assert error(served.client, "/detokenize", 400, tokens=[-1])["param"] == "tokens"
