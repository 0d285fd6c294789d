"""The output items of ``/v1/responses`` while an answer grows, and the events that tell of them. Knows no HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from .answers import AnswerEvent, Thought, call_id
from .schemas import ASSISTANT
from .tools.events import CallStart, Text

Event = dict[str, Any]


class OutputItems:
    """Items in the order in which the answer opens them. ``take`` and ``close`` yield the events without their numbers.

    ``id_length``: of the ids of calls.
    """

    def __init__(self, id_length: int) -> None:
        self.items: list[dict[str, Any]] = []
        self._id_length = id_length
        self._open: str | None = None

    def take(self, events: Sequence[AnswerEvent]) -> Iterator[Event]:
        """More of the answer."""
        for event in events:
            if isinstance(event, Thought):
                yield from self._grow("reasoning", event.text)
            elif isinstance(event, Text):
                yield from self._grow("message", event.text)
            elif isinstance(event, CallStart):
                yield from self.close()
                yield from self._start(self._call(event.name))
            else:
                self.items[-1]["arguments"] += event.text
                yield self._about("response.function_call_arguments.delta", delta=event.text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """The item at hand is as it will stay."""
        if self._open is None:
            return
        item, kind = self.items[-1], self._open
        self._open = None
        item["status"] = status
        if kind == "function_call":
            yield self._about("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            part = item["content"][0]
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            yield self._about(f"{_PARTS[kind]}.done", content_index=0, text=part["text"], **extra)
            yield self._about("response.content_part.done", content_index=0, part=dict(part))
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": _copy(item)}

    def _grow(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self.close()
            yield from self._start(_message() if kind == "message" else _reasoning())
        self.items[-1]["content"][0]["text"] += text
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._about(f"{_PARTS[kind]}.delta", content_index=0, delta=text, **extra)

    def _start(self, item: dict[str, Any]) -> Iterator[Event]:
        self.items.append(item)
        self._open = str(item["type"])
        bare = item | {"content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": bare}
        if "content" in item:
            yield self._about("response.content_part.added", content_index=0, part=dict(item["content"][0]))

    def _about(self, kind: str, **facts: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1} | facts

    def _call(self, name: str) -> dict[str, Any]:
        return {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id(self._id_length),
            "name": name,
            "arguments": "",
        }


_PARTS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


def _message() -> dict[str, Any]:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "status": "in_progress",
        "role": ASSISTANT,
        "content": [part],
    }


def _reasoning() -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": ""}
    return {
        "id": f"rs_{uuid.uuid4().hex}",
        "type": "reasoning",
        "status": "in_progress",
        "summary": [],
        "content": [part],
    }


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
