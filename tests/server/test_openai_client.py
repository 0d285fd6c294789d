"""The official client of OpenAI, as people use it: everything it offers that this server has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel
from tests.server.conftest import Served
from tests.server.kit import HELLO, Reciting, app_over, listening

from paceline import SamplingParams


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def reciting() -> Iterator[openai.OpenAI]:
    """A model that thinks, talks and calls two functions."""
    call = '<tool_call>\n{{"name": "look", "arguments": {{"at": "{}"}}}}\n</tool_call>'
    text = f"<think>hm</think>Well.\n{call.format('Paris')}\n{call.format('Rome')}"
    with (
        listening(app_over(Reciting(text, (3, 2) * 99))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_chat(client: openai.OpenAI, served: Served) -> None:
    (expected,) = served.llm.chat(HELLO, SamplingParams(max_tokens=12, temperature=0.9, seed=4, n=2))
    found = client.chat.completions.create(
        model="toy",
        messages=HELLO,
        max_completion_tokens=12,
        temperature=0.9,
        seed=4,
        n=2,  # type: ignore[arg-type]
    )
    assert [choice.message.content for choice in found.choices] == [one.text for one in expected.outputs]
    assert [choice.finish_reason for choice in found.choices] == [one.finish_reason for one in expected.outputs]
    assert found.usage is not None and found.usage.completion_tokens == expected.metrics.completion_tokens
    assert found._request_id and found.id.startswith("chatcmpl-")
    stream = client.chat.completions.create(
        model="toy",
        messages=HELLO,  # type: ignore[arg-type]
        max_completion_tokens=12,
        temperature=0.9,
        seed=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected.text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_scores_and_stops(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="toy",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=30,
        seed=1,
        stop=["a", "e", "i", "o", "u"],
        logprobs=True,
        top_logprobs=2,
        logit_bias={"72": 5},
        extra_body={"min_p": 0.01, "speculative": False},
    )
    (choice,) = found.choices
    assert choice.finish_reason == "stop" and choice.logprobs is not None and choice.logprobs.content is not None
    assert all(len(score.top_logprobs) == 2 for score in choice.logprobs.content)
    assert not set(choice.message.content or "") & set("aeiou")
    assert found.metrics["speculative_decoding"]["num_draft_tokens"] == 0  # type: ignore[attr-defined]


def test_text_completions(client: openai.OpenAI) -> None:
    found = client.completions.create(model="toy", prompt=["the", "a"], max_tokens=5, logprobs=2, echo=True, seed=2)
    assert found.choices[0].text.startswith("the") and len(found.choices) == 2
    assert found.choices[0].logprobs is not None and found.choices[0].logprobs.text_offset is not None
    pieces = list(client.completions.create(model="toy", prompt="the", max_tokens=5, seed=2, stream=True))
    assert "the" + "".join(piece.choices[0].text for piece in pieces) == found.choices[0].text


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def test_tools_and_reasoning(reciting: openai.OpenAI) -> None:
    found = reciting.chat.completions.create(model="toy", messages=HELLO, tools=TOOLS)  # type: ignore[arg-type]
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Well."
    assert choice.message.reasoning_content == "hm"  # type: ignore[attr-defined]
    calls = choice.message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls] == [{"at": "Paris"}, {"at": "Rome"}]  # type: ignore[union-attr]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in calls]
    said = [*HELLO, choice.message.model_dump(exclude_none=True), *results]
    assert reciting.chat.completions.create(model="toy", messages=said).choices  # type: ignore[arg-type]
    with reciting.chat.completions.stream(model="toy", messages=HELLO, tools=TOOLS) as stream:  # type: ignore[arg-type]
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert [c.function.arguments for c in final.message.tool_calls or []] == [c.function.arguments for c in calls]  # type: ignore[union-attr]


class Light(BaseModel):
    on: bool
    room: bool


def test_answers_of_a_type(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(model="toy", messages=HELLO, response_format=Light, temperature=0)  # type: ignore[arg-type]
    assert isinstance(found.choices[0].message.parsed, Light)


def test_responses(client: openai.OpenAI, reciting: openai.OpenAI) -> None:
    found = client.responses.create(model="toy", input="Hello there", max_output_tokens=8, temperature=0)
    assert found.output_text and found.status == "incomplete" and found.usage is not None
    tools = [{"type": "function", "name": "look", "parameters": None, "strict": False}]
    with reciting.responses.stream(model="toy", input="Hello", tools=tools) as stream:  # type: ignore[arg-type]
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert final.output_text == "Well."


def test_models_and_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy"]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="other", messages=HELLO)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=HELLO, top_p=3)  # type: ignore[arg-type]
    assert caught.value.param == "top_p"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="toy", messages=HELLO, temperature=-1, stream=True)  # type: ignore[arg-type]


def test_the_asynchronous_client(served: Served) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:

            async def one(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model="toy",
                    messages=HELLO,
                    max_tokens=10,
                    seed=seed,
                    stream=True,  # type: ignore[arg-type]
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return list(await asyncio.gather(*(one(seed) for seed in range(12))))

    expected = served.llm.chat([HELLO] * 12, [SamplingParams(max_tokens=10, seed=seed) for seed in range(12)])
    assert asyncio.run(main()) == [output.text for output in expected]
