"""Stop strings over a growing text: the first one to complete wins; what may still become one is held back.

Knows text only. Each string is matched by its own Knuth-Morris-Pratt automaton, so the cost is linear in the text and
the result does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """Automaton of one string: ``state`` is the length of its longest prefix that ends the text so far."""

    __slots__ = ("_fallback", "_pattern", "state")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._fallback = _fallbacks(pattern)
        self.state = 0

    @property
    def pattern(self) -> str:
        return self._pattern

    def step(self, character: str) -> bool:
        """Read one character; whether the string has just completed."""
        state = self.state
        while state and self._pattern[state] != character:
            state = self._fallback[state - 1]
        if self._pattern[state] == character:
            state += 1
        self.state = state
        return state == len(self._pattern)


class StopStrings:
    """Feed text, get back what is safe to show. After a match (``matched``) nothing more may be fed.

    The string that completes first ends the text, whatever its place in the list; of several completing at the same
    character the longest, which starts first. The text is cut before it, or after it if ``include`` is set.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is now certain to be shown."""
        if not self._matchers:
            return text
        known = len(self._held)
        self._held += text
        for place, character in enumerate(text, known + 1):
            complete = [m.pattern for m in self._matchers if m.step(character)]
            if complete:
                self.matched = max(complete, key=len)
                return self._release(place if self._include else place - len(self.matched), last=True)
        held = 0 if self._include else max(m.state for m in self._matchers)
        return self._release(len(self._held) - held)

    def flush(self) -> str:
        """What was held back, when no text will follow."""
        return self._release(len(self._held))

    def _release(self, length: int, last: bool = False) -> str:
        shown = self._held[:length]
        self._held = "" if last else self._held[length:]
        return shown


def _fallbacks(pattern: str) -> list[int]:
    """Per prefix length - 1: length of the longest proper prefix of the pattern that is a suffix of that prefix."""
    table = [0] * len(pattern)
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[place] != pattern[length]:
            length = table[length - 1]
        if pattern[place] == pattern[length]:
            length += 1
        table[place] = length
    return table
