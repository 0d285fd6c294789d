"""Reads the JSON object of one tool call while it grows: the name as soon as it is whole, the arguments as they come.
Knows JSON, not how models mark calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

_SPACE = " \t\r\n"
_STRING_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR_END = re.compile(r"[\s,}\]]")


@dataclass(frozen=True)
class NewName:
    name: str


@dataclass(frozen=True)
class NewArguments:
    text: str


Found = NewName | NewArguments


class JsonValue:
    """The extent of one JSON value that starts at the next character. ``feed`` takes characters of it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._began = False

    def feed(self, text: str, start: int) -> tuple[int, bool]:
        """Where the value stops within ``text[start:]``, and whether it is complete there."""
        for place in range(start, len(text)):
            if self._take(text[place]):
                return place + 1, True
        return len(text), False

    def _take(self, character: str) -> bool:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return not self._in_string and self._depth <= 0


class CallScanner:
    """One object ``{"name": ..., "arguments": {...}}`` in any order of its keys; ``parameters`` are arguments too.

    ``feed`` returns what was found and how many characters it used; ``done`` when the object has ended, ``failed`` when
    it cannot be a call (``text`` is then all that was read). Arguments before the name are held until it is known.
    """

    def __init__(self, first_keys: frozenset[str] | None = None) -> None:
        self._first_keys = first_keys
        self._state: Literal["open", "key", "colon", "value", "arguments", "next"] = "open"
        self._key = ""
        self._value = JsonValue()
        self._unread = ""
        self._held = ""
        self._named = False
        self._has_arguments = False
        self.text = ""
        self.done = False
        self.failed = False

    @property
    def named(self) -> bool:
        return self._named

    def feed(self, text: str) -> list[Found]:
        """Read on; what is left of ``text`` behind the end of the object is :attr:`rest`."""
        self._unread += text
        found: list[Found] = []
        while not (self.done or self.failed):
            before = len(self._unread)
            state = self._state
            found += self._step()
            if len(self._unread) == before and self._state == state:
                break
        return found

    @property
    def rest(self) -> str:
        """What was fed and does not belong to the object."""
        return self._unread

    @property
    def raw(self) -> str:
        """All that was fed."""
        return self.text + self._unread

    def _use(self, count: int) -> str:
        used, self._unread = self._unread[:count], self._unread[count:]
        self.text += used
        return used

    def _step(self) -> list[Found]:
        if self._state == "arguments":
            return self._read_arguments()
        self._use(len(self._unread) - len(self._unread.lstrip(_SPACE)))
        if not self._unread:
            return []
        steps = {
            "open": self._open,
            "key": self._read_key,
            "colon": self._colon,
            "value": self._read_value,
            "next": self._next,
        }
        return steps[self._state]()

    def _open(self) -> list[Found]:
        return self._expect("{", "key")

    def _colon(self) -> list[Found]:
        return self._expect(":", "value")

    def _expect(self, character: str, following: Literal["key", "value"]) -> list[Found]:
        if self._unread[0] == character:
            self._use(1)
            self._state = following
        else:
            self._fail()
        return []

    def _read_key(self) -> list[Found]:
        if self._unread[0] == "}":
            return self._end()
        key = self._string()
        if key is not None:
            self._key = key
            self._state = "colon"
            if not self._named and self._first_keys is not None and key not in self._first_keys:
                self._fail()
        return []

    def _read_value(self) -> list[Found]:
        if self._key == "name" and not self._named:
            name = self._string()
            if name is None:
                return []
            self._named = True
            self._state = "next"
            held, self._held = self._held, ""
            return [NewName(name), NewArguments(held)] if held else [NewName(name)]
        if self._key in ("arguments", "parameters") and not self._has_arguments:
            return self._start_arguments()
        end = self._value_end()
        if end is not None:
            self._use(end)
            self._state = "next"
        return []

    def _start_arguments(self) -> list[Found]:
        if self._unread[0] in "{[":
            self._has_arguments = True
            self._value = JsonValue()
            self._state = "arguments"
            return []
        end = self._value_end()
        if end is None:
            return []
        self._has_arguments = True
        self._state = "next"
        return self._tell(_decoded(self._use(end)))

    def _read_arguments(self) -> list[Found]:
        if not self._unread:
            return []
        end, complete = self._value.feed(self._unread, 0)
        if complete:
            self._state = "next"
        return self._tell(self._use(end))

    def _next(self) -> list[Found]:
        if self._unread[0] == ",":
            self._use(1)
            self._state = "key"
            return []
        return self._end() if self._unread[0] == "}" else self._stop()

    def _end(self) -> list[Found]:
        self._use(1)
        return self._stop()

    def _stop(self) -> list[Found]:
        """The object has ended, also where its last brace is missing."""
        if not self._named:
            self._fail()
            return []
        self.done = True
        return [] if self._has_arguments else [NewArguments("{}")]

    def _tell(self, text: str) -> list[Found]:
        if self._named:
            return [NewArguments(text)] if text else []
        self._held += text
        return []

    def _string(self) -> str | None:
        """The string at hand once it is whole."""
        if self._unread[0] != '"':
            self._fail()
            return None
        end = _STRING_END.match(self._unread, 1)
        if end is None:
            return None
        try:
            return str(json.loads(self._use(end.end()), strict=False))
        except ValueError:
            self._fail()
            return None

    def _value_end(self) -> int | None:
        """Length of the value at hand once it is whole."""
        if self._unread[0] in '"{[':
            end, complete = JsonValue().feed(self._unread, 0)
            return end if complete else None
        found = _SCALAR_END.search(self._unread)
        if found is not None and found.start() == 0:
            self._fail()
            return None
        return None if found is None else found.start()

    def _fail(self) -> None:
        if self._named:
            self.done = True
        else:
            self.failed = True


def _decoded(value: str) -> str:
    """Arguments that are no object: JSON written as a string is taken out of it, nothing is no arguments."""
    if value.startswith('"'):
        try:
            return str(json.loads(value, strict=False)) or "{}"
        except ValueError:
            return value
    return "{}" if value == "null" else value
