"""Reads one answer: thinking block, text, tool calls, piece by piece or whole. The same reader serves streams and
documents, so that both say the same."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .reasoning import ReasoningSplitter
from .tools.events import CallStart, Event, Text, ToolParser, WrittenCall, collected

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Thought:
    """Text of the thinking block."""

    text: str


AnswerEvent: TypeAlias = Thought | Event


class AnswerReader:
    """``most_calls``: calls beyond are left out (``parallel_tool_calls: false``)."""

    def __init__(
        self, splitter: ReasoningSplitter | None, parser: ToolParser | None, most_calls: int | None = None
    ) -> None:
        self._splitter = splitter
        self._parser = parser
        self._most_calls = most_calls
        self.calls = 0

    def feed(self, text: str) -> list[AnswerEvent]:
        """What is certain once ``text`` has been added."""
        if self._splitter is None:
            return self._read(text)
        found: list[AnswerEvent] = []
        for part in self._splitter.feed(text):
            found += [Thought(part.text)] if part.thinking else self._read(part.text)
        return found

    def finish(self) -> list[AnswerEvent]:
        """What was held back, when no text will follow."""
        found: list[AnswerEvent] = []
        for part in self._splitter.finish() if self._splitter is not None else ():
            found += [Thought(part.text)] if part.thinking else self._read(part.text)
        return found + (self._kept(self._parser.finish()) if self._parser is not None else [])

    def _read(self, text: str) -> list[AnswerEvent]:
        if self._parser is None:
            return [Text(text)] if text else []
        return self._kept(self._parser.feed(text))

    def _kept(self, events: Sequence[Event]) -> list[AnswerEvent]:
        kept: list[AnswerEvent] = []
        for event in events:
            if not isinstance(event, Text) and self._most_calls is not None and event.index >= self._most_calls:
                continue
            self.calls += isinstance(event, CallStart)
            kept.append(event)
        return kept


@dataclass(frozen=True)
class WholeAnswer:
    """An answer taken apart."""

    text: str
    reasoning: str
    calls: list[WrittenCall]


def whole_answer(reader: AnswerReader, text: str) -> WholeAnswer:
    """A complete text through a fresh reader."""
    events = [*reader.feed(text), *reader.finish()]
    said, calls = collected([event for event in events if not isinstance(event, Thought)])
    return WholeAnswer(said, "".join(event.text for event in events if isinstance(event, Thought)), calls)


def call_id(length: int) -> str:
    """A fresh id of a call: nine letters and digits where templates insist on that, else OpenAI's form."""
    name = "".join(secrets.choice(_ALPHABET) for _ in range(length))
    return name if length < 20 else f"call_{name}"
