"""The chunks of a streamed chat answer: one delta of the engine becomes the choices to be sent. Knows no HTTP."""

from __future__ import annotations

from typing import Any

from ..engine.detokenize import TokenDecoder
from ..engine.frontend import Prompt
from ..engine.outputs import StreamDelta
from .answers import AnswerEvent, AnswerReader, Thought, call_id
from .conversation import Conversation
from .schemas import ASSISTANT
from .schemas_chat import ChatRequest
from .scores import chat_entries
from .tools.events import CallStart, Text


class ChatStream:
    """All samples of one conversation."""

    def __init__(
        self, conversation: Conversation, body: ChatRequest, prompt: Prompt, decoder: TokenDecoder | None
    ) -> None:
        self._conversation = conversation
        self._body = body
        self._prompt = prompt
        self._decoder = decoder
        self._origins = bool(body.stream_options and body.stream_options.include_origins)
        self._readers: dict[int, AnswerReader] = {}

    def choices(self, delta: StreamDelta) -> list[dict[str, Any]]:
        """Choices for one delta, each for a chunk of its own; the last of a sample has its finish reason. What belongs
        to the delta's tokens goes with the first."""
        found: list[dict[str, Any]] = []
        reader = self._readers.get(delta.index)
        if reader is None:
            reader = self._readers[delta.index] = self._conversation.reader(self._prompt)
            found.append({"role": ASSISTANT, "content": ""})
        events = reader.feed(delta.text)
        if delta.output is not None:
            events = [*events, *reader.finish()]
        found += [self._delta(event) for event in events]
        extras = self._extras(delta)
        if extras and not found:
            found.append({})
        shown = [self._choice(delta.index, each) for each in found]
        for choice in shown[:1]:
            choice.update(extras)
        if delta.output is not None:
            end = self._choice(delta.index, {})
            reason = delta.output.finish_reason
            end["finish_reason"] = "tool_calls" if reader.calls and reason == "stop" else reason
            end["stop_reason"] = delta.output.stop_reason
            shown.append(end)
        return shown

    def _choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _extras(self, delta: StreamDelta) -> dict[str, Any]:
        """What was asked for beside the text, for the tokens of this delta."""
        extras: dict[str, Any] = {}
        if self._body.logprobs and delta.logprobs:
            entries = chat_entries(delta.token_ids, delta.logprobs, self._body.top_logprobs or 0, self._decoder)
            extras["logprobs"] = {"content": entries, "refusal": None}
        if self._body.return_token_ids and delta.token_ids:
            extras["token_ids"] = list(delta.token_ids)
        if self._origins and delta.pieces:
            extras["origins"] = [{"text": piece.text, "origin": piece.origin} for piece in delta.pieces]
        return extras

    def _delta(self, event: AnswerEvent) -> dict[str, Any]:
        if isinstance(event, Thought):
            return {"reasoning_content": event.text}
        if isinstance(event, Text):
            return {"content": event.text}
        if isinstance(event, CallStart):
            length = self._conversation.dialect.id_length if self._conversation.dialect else 24
            function = {"name": event.name, "arguments": ""}
            start = {"index": event.index, "id": call_id(length), "type": "function", "function": function}
            return {"tool_calls": [start]}
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
