"""From a body of ``/v1/responses`` to messages, tools and options: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .conversation import ToolUse
from .errors import bad_field
from .messages import template_messages
from .schemas import ASSISTANT, FunctionDefinition
from .schemas_chat import FunctionCall, Message, Tool, ToolCall
from .schemas_responses import (
    ContentPart,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    MessageItem,
    NamedFunctionTool,
    ReasoningItem,
    ResponsesRequest,
)
from .translate import Wanted, predicted_text, shared_options


def input_messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Messages for the chat template: the instructions first, calls and thoughts at the assistant's messages."""
    messages = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
    else:
        messages += _of_items(body.input)
    if not messages:
        raise bad_field("input", "is empty; give at least one item")
    return template_messages(messages, "input")


def _of_items(items: Sequence[InputItem]) -> list[Message]:
    messages: list[Message] = []
    thought: str | None = None
    for item in items:
        if isinstance(item, ReasoningItem):
            thought = "".join(part.text for part in item.content or item.summary or ()) or None
        elif isinstance(item, FunctionCallItem):
            _add_call(messages, item, thought)
            thought = None
        elif isinstance(item, FunctionOutputItem):
            messages.append(Message(role="tool", content=_text(item.output), tool_call_id=item.call_id))
        else:
            messages.append(_message(item, thought))
            thought = None
    return messages


def _message(item: MessageItem, thought: str | None) -> Message:
    reasoning = thought if item.role == ASSISTANT else None
    return Message(role=item.role, content=_text(item.content), reasoning_content=reasoning)


def _add_call(messages: list[Message], item: FunctionCallItem, thought: str | None) -> None:
    """Calls belong to the assistant's message before them."""
    call = ToolCall(id=item.call_id, type="function", function=FunctionCall(name=item.name, arguments=item.arguments))
    last = messages[-1] if messages else None
    if last is not None and last.role == ASSISTANT and thought is None:
        messages[-1] = last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
    else:
        messages.append(Message(role=ASSISTANT, tool_calls=[call], reasoning_content=thought))


def _text(content: str | list[ContentPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def tool_use(body: ResponsesRequest) -> ToolUse:
    tools = [
        Tool(type="function", function=FunctionDefinition(**each.model_dump(exclude={"type"})))
        for each in body.tools or ()
    ]
    parallel = body.parallel_tool_calls is not False
    if isinstance(body.tool_choice, NamedFunctionTool):
        return ToolUse(tools, "named", body.tool_choice.name, parallel)
    return ToolUse(tools, body.tool_choice or "auto", None, parallel)


def response_options(body: ResponsesRequest) -> Wanted:
    """Options of the request."""
    options, spelt = shared_options(body)
    if body.max_output_tokens is not None:
        options["max_tokens"] = body.max_output_tokens
        spelt["max_tokens"] = "max_output_tokens"
    if body.prediction is not None:
        options["prediction"] = predicted_text(body.prediction)
    constraint = _format(body)
    if constraint is not None:
        if "structured_outputs" in options:
            raise bad_field("structured_outputs", "cannot be combined with text.format; give one of the two")
        options["structured_outputs"] = constraint
        spelt["structured_outputs"] = "text.format.schema" if "json" in constraint else "text.format"
    return Wanted(options, spelt)


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = None if body.text is None else body.text.format
    if given is None:
        return None
    if given.type == "json_schema":
        if given.json_schema is None:
            raise bad_field("text.format.schema", "is missing")
        return {"json": given.json_schema}
    if given.json_schema is not None:
        raise bad_field("text.format.schema", 'goes with type "json_schema" only')
    return {"json_object": True} if given.type == "json_object" else None
