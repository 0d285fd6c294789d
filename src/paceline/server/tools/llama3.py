"""Calls as Llama 3 models write them: the answer is ``{"name": ..., "parameters": {...}}``, several apart by ``;``,
sometimes behind ``<|python_tag|>``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .events import CallStart, Event, Text
from .reader import MarkedParser
from .scan import CallScanner

TAG = "<|python_tag|>"
_FIRST_KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})
_BETWEEN = " \t\r\n;,"


class Llama3Parser(MarkedParser):
    """See the module. Only an object at the very start is a call, and only if it names one of ``tools``; every other
    answer is text as it stands."""

    def __init__(self, tools: Iterable[str]) -> None:
        super().__init__()
        self._tools = frozenset(tools)
        self._state: Literal["start", "call", "between", "text"] = "start"
        self._before = ""

    def _step(self) -> list[Event] | None:
        if self._state == "text":
            text, self._held = self._held, ""
            return [Text(text)] if text else None
        if self._state == "call":
            return self._read_call()
        return self._read_start()

    def _read_start(self) -> list[Event] | None:
        """At the start, or behind a call: an object, or text from here on."""
        rest = self._held.lstrip(_BETWEEN if self._state == "between" else None)
        if not rest or (TAG.startswith(rest) and rest != TAG):
            return None
        tagged = rest.removeprefix(TAG).lstrip()
        if not tagged:
            return None
        if not tagged.startswith("{"):
            self._state = "text"
            return []
        self._before = self._held[: len(self._held) - len(tagged)]
        self._held = tagged
        self._scanner = CallScanner(_FIRST_KEYS)
        self._state = "call"
        return []

    def _read_call(self) -> list[Event] | None:
        scanner = self._scanner
        if scanner is None or not self._held:
            return None
        calls = self._calls
        events = self._scan(scanner)
        unknown = [event for event in events if isinstance(event, CallStart) and event.name not in self._tools]
        if scanner.failed or unknown:
            self._calls = calls
            self._scanner = None
            self._held = ""
            self._state = "text"
            return [Text(self._as_text(scanner.raw))]
        if scanner.done:
            self._state = "between"
        return events

    def _as_text(self, raw: str) -> str:
        return self._before + raw

    def _last(self, rest: str) -> list[Event]:
        return [] if self._state == "between" and not rest.strip(_BETWEEN) else [Text(rest)]
