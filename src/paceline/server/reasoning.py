"""Splits an answer into its thinking block and the rest, whatever pieces it comes in. Knows text only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ThinkMarkers:
    """How a model marks its thinking block."""

    start: str
    end: str


MARKERS = (
    ThinkMarkers("<think>", "</think>"),
    ThinkMarkers("<thinking>", "</thinking>"),
    ThinkMarkers("[THINK]", "[/THINK]"),
)


@dataclass(frozen=True)
class Part:
    """A piece of text and which side of the split it is on."""

    text: str
    thinking: bool


class ReasoningSplitter:
    """One answer. ``opened``: the prompt ends inside a thinking block.

    A block may only stand at the start (behind white space). Newlines next to the markers are left out; everything else
    is kept, so that an answer without a block comes out as it is.
    """

    def __init__(self, markers: ThinkMarkers, opened: bool) -> None:
        self._markers = markers
        self._held = ""
        self._state: Literal["before", "opening", "thinking", "closing", "after"] = "opening" if opened else "before"

    def feed(self, text: str) -> list[Part]:
        """What is certain once ``text`` has been added."""
        self._held += text
        parts: list[Part] = []
        while (part := self._step()) is not None:
            if part.text:
                parts.append(part)
        return parts

    def finish(self) -> list[Part]:
        """What is still held, when no text will follow."""
        rest, self._held = self._held, ""
        thinking = self._state in ("opening", "thinking")
        if thinking:
            rest = rest.rstrip("\n")
        if self._state in ("opening", "closing"):
            rest = rest.lstrip("\n")
        return [Part(rest, thinking)] if rest else []

    def _step(self) -> Part | None:
        """One move; ``None`` when more text is needed."""
        if self._state == "before":
            return self._before()
        if self._state in ("opening", "closing"):
            self._held = self._held.lstrip("\n")
            if not self._held:
                return None
            self._state = "thinking" if self._state == "opening" else "after"
            return Part("", False)
        if self._state == "thinking":
            return self._thinking()
        return self._release(len(self._held), thinking=False) if self._held else None

    def _before(self) -> Part | None:
        start = self._markers.start
        text = self._held.lstrip()
        if text.startswith(start):
            self._held = text[len(start) :]
            self._state = "opening"
            return Part("", True)
        if start.startswith(text):  # may still become the marker
            return None
        self._state = "after"
        return Part("", False)

    def _thinking(self) -> Part | None:
        end = self._markers.end
        place = self._held.find(end)
        if place >= 0:
            thought = self._held[:place].rstrip("\n")
            self._held = self._held[place + len(end) :]
            self._state = "closing"
            return Part(thought, True)
        kept = len(self._held) - overlap(self._held, end)
        kept = len(self._held[:kept].rstrip("\n"))
        return self._release(kept, thinking=True) if kept else None

    def _release(self, length: int, thinking: bool) -> Part:
        shown, self._held = self._held[:length], self._held[length:]
        return Part(shown, thinking)


def overlap(text: str, marker: str) -> int:
    """Length of the longest beginning of ``marker`` that ends ``text`` (short of the whole marker)."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
