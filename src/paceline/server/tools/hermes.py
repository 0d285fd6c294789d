"""Calls as Hermes and Qwen models write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from typing import Literal

from .events import Event, Text
from .reader import MarkedParser
from .scan import CallScanner

START, END = "<tool_call>", "</tool_call>"


class HermesParser(MarkedParser):
    """See the module. A call without its end marker, or without its last brace, counts; one without a name is text."""

    def __init__(self) -> None:
        super().__init__()
        self._state: Literal["text", "call", "end", "gap"] = "text"

    def _step(self) -> list[Event] | None:
        if self._state == "text":
            return self._read_text()
        if self._state == "call":
            return self._read_call()
        return self._read_end() if self._state == "end" else self._read_gap()

    def _read_text(self) -> list[Event] | None:
        events, found = self._text_until(START)
        if found:
            self._state = "call"
            self._scanner = CallScanner()
            return events
        return events or None

    def _read_call(self) -> list[Event] | None:
        scanner = self._scanner
        if scanner is None or not self._held:
            return None
        events = self._scan(scanner)
        if scanner.failed:
            self._scanner = None
            self._state = "text"
            return [Text(self._as_text(scanner.raw))]
        if scanner.done:
            self._state = "end"
        return events

    def _read_end(self) -> list[Event] | None:
        rest = self._held.lstrip()
        if rest.startswith(END):
            self._held = rest[len(END) :]
        elif END.startswith(rest):
            return None
        self._state = "gap"
        return []

    def _read_gap(self) -> list[Event] | None:
        """White space behind a call is part of its marking."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._state = "text"
        return []

    def _as_text(self, raw: str) -> str:
        return self._gap + START + raw

    def _last(self, rest: str) -> list[Event]:
        return [Text(rest)] if self._state == "text" else []
