"""Where runs of token ids occur in a text: an index of all n-grams, extended as the text grows. Knows no request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: A suffix is compared over so many ids; longer matches do not tell places apart any better.
LONGEST = 16
#: Occurrences looked at, those nearest behind and before the last known place.
_BEHIND, _BEFORE = 8, 4


class Anchor(NamedTuple):
    """A place in a source where a text may go on: ``tokens[place]`` comes next, and the ``length`` ids before it are
    the text's last ones."""

    place: int
    length: int


def shared_suffix(tokens: Sequence[int], place: int, text: Sequence[int], limit: int) -> int:
    """How many ids before ``tokens[place]`` are the last ones of ``text``, at most ``limit``."""
    most = min(limit, place, len(text))
    length = 0
    while length < most and tokens[place - 1 - length] == text[-1 - length]:
        length += 1
    return length


class GramIndex:
    """Every n-gram of ``tokens`` -> the places behind its occurrences, ascending.

    ``tokens`` may grow; :meth:`extend` then indexes what is new, at a constant cost per id. Building takes about 0.3
    microseconds per id.
    """

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        self._tokens = tokens
        self._size = size
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0
        self.extend()

    def extend(self) -> None:
        """Index all n-grams that have become complete."""
        size, tokens, places = self._size, self._tokens, self._places
        start = max(0, self._indexed - size + 1)
        fresh = tokens[start:]
        for place, gram in enumerate(zip(*(fresh[shift:] for shift in range(size)), strict=False), start + size):
            found = places.get(gram)
            if found is None:
                places[gram] = [place]
            else:
                found.append(place)
        self._indexed = len(tokens)

    def find(self, text: Sequence[int], last: int | None) -> Anchor | None:
        """The occurrence of the longest suffix of ``text``; of equally long ones the nearest behind ``last``, the last
        known place (``None`` = the newest occurrence). ``None`` if no n-gram of it occurs.

        An occurrence at the very end of ``tokens`` does not count: nothing follows it.
        """
        size = self._size
        if len(text) < size:
            return None
        places = self._places.get(tuple(text[-size:]))
        if places is None:
            return None
        best: Anchor | None = None
        for place in _nearest(places, len(self._tokens) if last is None else last):
            if place == len(self._tokens):
                continue
            length = shared_suffix(self._tokens, place, text, LONGEST)
            if best is None or length > best.length:
                best = Anchor(place, length)
        return best


def _nearest(places: list[int], last: int) -> Iterator[int]:
    """Some of the ascending ``places``: from ``last`` on, then backwards from it."""
    middle = bisect_left(places, last)
    yield from places[middle : middle + _BEHIND]
    yield from reversed(places[max(0, middle - _BEFORE) : middle])
