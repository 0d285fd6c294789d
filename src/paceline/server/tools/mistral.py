"""Calls as Mistral models write them: ``[TOOL_CALLS]`` and a list of objects, or a name and its arguments."""

from __future__ import annotations

from typing import Literal

from .events import CallArguments, CallStart, Event, Text
from .reader import MarkedParser
from .scan import CallScanner, JsonValue

START, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
#: Special tokens of the tokenizer that must show in the text.
MARKERS = (START, ARGUMENTS, CALL_ID)

State = Literal["text", "marked", "list", "call", "between", "name", "arguments"]


class MistralParser(MarkedParser):
    """See the module. ``listed``: the answer starts inside of the list's marker (forced calls have none)."""

    def __init__(self, listed: bool = False) -> None:
        super().__init__()
        self._state: State = "marked" if listed else "text"
        self._value = JsonValue()

    def _step(self) -> list[Event] | None:
        steps = {
            "text": self._read_text,
            "marked": self._read_marked,
            "list": self._read_list,
            "call": self._read_call,
            "between": self._read_between,
            "name": self._read_name,
            "arguments": self._read_arguments,
        }
        return steps[self._state]()

    def _read_text(self) -> list[Event] | None:
        events, found = self._text_until(START)
        if found:
            self._state = "marked"
            return events
        return events or None

    def _read_marked(self) -> list[Event] | None:
        """Behind the marker: a list of objects, or the name of a function."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        listed = self._held.startswith("[")
        self._held = self._held.removeprefix("[") if listed else self._held
        self._state = "list" if listed else "name"
        return []

    def _read_list(self) -> list[Event] | None:
        self._held = self._held.lstrip(" \t\r\n,")
        if not self._held:
            return None
        if self._held[0] == "{":
            self._scanner = CallScanner()
            self._state = "call"
        else:
            self._held = self._held.removeprefix("]")
            self._state = "between"
        return []

    def _read_call(self) -> list[Event] | None:
        scanner = self._scanner
        if scanner is None or not self._held:
            return None
        events = self._scan(scanner)
        if scanner.failed:
            self._scanner = None
            self._state = "text"
            return [Text(scanner.raw)]
        if scanner.done:
            self._state = "list"
        return events

    def _read_between(self) -> list[Event] | None:
        """Behind a call or a list: white space is nothing, a marker starts over, all else is text."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._state = "text"
        return []

    def _read_name(self) -> list[Event] | None:
        brace = self._held.find("{")
        if brace < 0:
            return None
        name = self._held[:brace].split(CALL_ID)[0].split(ARGUMENTS)[0].strip()
        self._held = self._held[brace:]
        self._value = JsonValue()
        self._state = "arguments"
        self._calls += 1
        return [CallStart(self._calls - 1, name)]

    def _read_arguments(self) -> list[Event] | None:
        if not self._held:
            return None
        end, complete = self._value.feed(self._held, 0)
        text, self._held = self._held[:end], self._held[end:]
        if complete:
            self._state = "between"
        return [CallArguments(self._calls - 1, text)]

    def _last(self, rest: str) -> list[Event]:
        if self._state == "name":
            return [Text(START + rest)]
        return [Text(rest)] if self._state == "text" else []
