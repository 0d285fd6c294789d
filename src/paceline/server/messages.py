"""From the messages of a request to those of a chat template. Pure functions; what no template can show is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import bad_field
from .schemas import ASSISTANT
from .schemas_chat import Message, Tool, ToolCall
from .schemas_sampling import TextPart

#: Names that the renderer itself gives to a template.
_TAKEN = frozenset(
    {"messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize", "documents"}
    | {"padding", "truncation", "max_length", "return_tensors", "return_dict", "conversation", "tokenizer_kwargs"}
    | {"return_assistant_tokens_mask"}
)


def template_messages(messages: Sequence[Message], name: str = "messages") -> list[dict[str, Any]]:
    """Messages as templates read them: parts of text joined by newlines, ``developer`` as ``system``, the arguments of
    earlier calls as objects."""
    return [_message(message, f"{name}[{place}]") for place, message in enumerate(messages)]


def _message(message: Message, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    _check_role(message, name)
    shown["content"] = text_of(message.content)
    if message.tool_calls:
        shown["tool_calls"] = [_call(call, f"{name}.tool_calls[{n}]") for n, call in enumerate(message.tool_calls)]
    for field in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, field)
        if value is not None:
            shown[field] = value
    return shown


def _check_role(message: Message, name: str) -> None:
    if message.content is None and not message.tool_calls:
        raise bad_field(f"{name}.content", "is missing")
    owner = {"tool_calls": ASSISTANT, "reasoning_content": ASSISTANT, "tool_call_id": "tool"}
    for field, role in owner.items():
        if getattr(message, field) is not None and message.role != role:
            raise bad_field(f"{name}.{field}", f"belongs to a message of role {role}, not {message.role}")
    if message.role == "tool" and message.tool_call_id is None:
        raise bad_field(f"{name}.tool_call_id", "is missing: it names the call that this message answers")


def text_of(content: str | Sequence[TextPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        raise bad_field(f"{name}.function.arguments", "is not JSON") from None
    if not isinstance(arguments, dict):
        raise bad_field(f"{name}.function.arguments", "must be the JSON of an object")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as templates read them."""
    shown = []
    for tool in tools:
        function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
        function.setdefault("parameters", {"type": "object", "properties": {}})
        shown.append({"type": "function", "function": function})
    return shown


def template_kwargs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Variables for the template; names that the renderer gives itself are refused."""
    for name in given or {}:
        if name in _TAKEN or name.startswith("_"):
            raise bad_field(f"chat_template_kwargs.{name:.64}", "is given by the server itself")
    return dict(given or {})
