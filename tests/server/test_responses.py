"""The responses route: documents and event streams say the same, and what the chat route says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.server.conftest import Served
from tests.server.kit import HELLO, Reciting, answer, error, in_process, post

from paceline.server.schemas_responses import ResponseObject

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Events of a stream, whose numbers and names must agree with their contents."""
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_a_text_is_that_of_the_chat_route(served: Served) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5}
    chat = answer(served.client, "/v1/chat/completions", messages=HELLO, max_tokens=12, **options)
    for given in ("Hello there", HELLO, [{"role": "user", "content": [{"type": "input_text", "text": "Hello there"}]}]):
        document = answer(served.client, PATH, input=given, max_output_tokens=12, **options)
        ResponseObject.model_validate(document)
        (item,) = document["output"]
        assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert document["status"] == "incomplete"
        assert document["incomplete_details"] == {"reason": "max_output_tokens"}
        assert document["usage"]["output_tokens"] == 12
        assert document["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


TEXTS = [
    "the other people",
    "<think>who then</think>\n\nthe other people",
    'Well. <tool_call>{"name": "look", "arguments": {"at": "this"}}</tool_call>',
    (
        '<think>a</think>b <tool_call>{"name": "look", "arguments": {}}</tool_call>\n'
        '<tool_call>{"arguments": {"at": "it"}, "name": "look"}</tool_call>'
    ),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("bursts", [(), (3,) * 99, (50, 50)])
def test_a_stream_adds_up_to_the_document(text: str, bursts: tuple[int, ...]) -> None:
    with in_process(Reciting(text, bursts)) as client:
        body: dict[str, Any] = {"input": "hi", "tools": [TOOL]}
        document = answer(client, PATH, **body)
        ResponseObject.model_validate(document)
        events = events_of(post(client, PATH, stream=True, **body))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    ResponseObject.model_validate(final)
    assert [bare(item) for item in final["output"]] == [bare(item) for item in document["output"]]
    assert final["usage"] == document["usage"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    grown = [""] * len(done)
    for event in events:
        if event["type"].endswith(".delta"):
            assert event["item_id"] == done[event["output_index"]]["id"]
            grown[event["output_index"]] += event["delta"]
    said = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in done]
    assert grown == said


def test_items_of_every_kind(served: Served) -> None:
    items = [
        {"type": "message", "role": "user", "content": "Look"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Yes", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "it"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]
    document = answer(served.client, PATH, input=items, instructions="Go", max_output_tokens=1, metadata={"a": "b"})
    assert document["instructions"] == "Go" and document["metadata"] == {"a": "b"}
    call = {"role": "assistant", "content": "Yes", "reasoning_content": "so"}
    function = [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": ""}},
    ]
    messages = [
        {"role": "system", "content": "Go"},
        {"role": "user", "content": "Look"},
        {**call, "tool_calls": function},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    ]
    shown = answer(served.client, "/tokenize", messages=messages)
    assert document["usage"]["input_tokens"] == shown["count"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "store": True}, "store"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "a", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "a", "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, body: dict[str, Any], param: str) -> None:
    assert error(served.client, PATH, 400, **body)["param"] == param


def test_a_schema_holds(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schema["x-guidance"] = {"whitespace_flexible": False}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    document = answer(served.client, PATH, input="hi", max_output_tokens=40, text=form)
    assert json.loads(document["output"][0]["content"][0]["text"])["a"] in (True, False)
