"""What reading an answer yields: text, and tool calls whose arguments grow. Plain records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class Text:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The ``index``-th call names its function."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the JSON of the ``index``-th call's arguments, as the model wrote it."""

    index: int
    text: str


Event: TypeAlias = Text | CallStart | CallArguments


class ToolParser(Protocol):
    """Reads one answer piece by piece; the joined events do not depend on how it was cut."""

    def feed(self, text: str) -> list[Event]:
        """What is certain once ``text`` has been added."""
        ...

    def finish(self) -> list[Event]:
        """What is still held, when no text will follow."""
        ...


def merged(events: Iterable[Event]) -> list[Event]:
    """Neighbours of one kind as one event; empty ones are left out."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            found[-1] = CallArguments(event.index, last.text + event.text)
        elif isinstance(event, CallStart) or event.text:
            found.append(event)
    return found


@dataclass(frozen=True)
class WrittenCall:
    """A complete call. ``arguments``: JSON text."""

    name: str
    arguments: str


def collected(events: Sequence[Event]) -> tuple[str, list[WrittenCall]]:
    """The text and the calls of a whole answer."""
    text = "".join(event.text for event in events if isinstance(event, Text))
    names = [event.name for event in events if isinstance(event, CallStart)]
    calls = []
    for index, name in enumerate(names):
        pieces = [event.text for event in events if isinstance(event, CallArguments) and event.index == index]
        calls.append(WrittenCall(name, "".join(pieces)))
    return text, calls
