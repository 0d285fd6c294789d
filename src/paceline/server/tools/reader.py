"""What the parsers share: text that is held back while it may still become the beginning of a call, numbering of calls,
and objects that turn out to be text after all."""

from __future__ import annotations

from ..reasoning import overlap
from .events import CallArguments, CallStart, Event, Text, merged
from .scan import CallScanner, Found, NewName


class MarkedParser:
    """Base of parsers: a loop of moves over the held text. A subclass has states and a ``_step`` for each move, which
    returns ``None`` when more text is needed.

    White space directly before a call is part of its marking and is left out.
    """

    def __init__(self) -> None:
        self._held = ""
        self._gap = ""
        self._calls = 0
        self._scanner: CallScanner | None = None

    def feed(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while (step := self._step()) is not None:
            events += step
        return merged(events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._scanner is not None and not self._scanner.named:
            events.append(Text(self._as_text(self._scanner.raw)))
        rest, self._held = self._held, ""
        return merged([*events, *self._last(rest)])

    def _step(self) -> list[Event] | None:
        raise AssertionError("a parser defines its moves")

    def _as_text(self, raw: str) -> str:
        """What an object that is no call was in the answer."""
        return raw

    def _last(self, rest: str) -> list[Event]:
        """Events of what was held to the end."""
        return [Text(rest)]

    def _text_until(self, marker: str) -> tuple[list[Event], bool]:
        """Text before the marker, and whether the marker was found (it is taken then)."""
        place = self._held.find(marker)
        if place >= 0:
            shown = self._held[:place].rstrip()
            self._gap = self._held[len(shown) : place]
            self._held = self._held[place + len(marker) :]
            return ([Text(shown)] if shown else []), True
        certain = self._held[: len(self._held) - overlap(self._held, marker)].rstrip()
        self._held = self._held[len(certain) :]
        return ([Text(certain)] if certain else []), False

    def _scan(self, scanner: CallScanner) -> list[Event]:
        """Feed what is held to a scanner; what it leaves is held again."""
        text, self._held = self._held, ""
        events = self._called(scanner.feed(text))
        if scanner.done:
            self._held = scanner.rest
            self._scanner = None
        return events

    def _called(self, found: list[Found]) -> list[Event]:
        events: list[Event] = []
        for each in found:
            if isinstance(each, NewName):
                events.append(CallStart(self._calls, each.name))
                self._calls += 1
            else:
                events.append(CallArguments(self._calls - 1, each.text))
        return events
