"""DRY penalty of one row: repetitions that the next token would make longer (spec 13.1, step 2). Host only.

The scheme is p-e-w's ("DRY: a modern repetition penalty", text-generation-webui pull request 5677) in the form of
llama.cpp: the penalty of a token is that of the longest repetition it extends.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .edits import Array
from .history import RowHistory
from .settings import DrySettings

#: No penalty exceeds this: enough to ban an id, small enough for float32.
LARGEST = 1e30


class _Repeats(NamedTuple):
    """``positions`` [n] ascending; ``lengths`` [n]: how many tokens up to each equal the last tokens of the text."""

    positions: Array
    lengths: Array


_NONE = _Repeats(np.empty(0, np.int64), np.empty(0, np.int64))
_Index = dict[tuple[int, ...], "array[int]"]


class DryTable:
    """Where the end of the text repeats earlier text, kept up to date token by token.

    Only lengths of at least ``allowed_length`` are kept. Since each such position ends the same ``allowed_length``
    tokens as the text, an index of these finds them, and lengths grow by one from those of the token before. A token
    costs one look-up, and O(repetitions that it continues) in array operations: each of them takes part in the formula.
    """

    def __init__(self, settings: DrySettings, history: RowHistory) -> None:
        self._settings = settings
        self._history = history
        self._index: _Index = {}
        self._unbroken = 0
        self._largest_exponent = int(math.log(LARGEST) / math.log(settings.base)) if settings.base > 1 else 0
        tokens, size = history.tokens, settings.allowed_length
        for end, token in enumerate(tokens):
            self._unbroken = self._run(self._unbroken, token)
            if self._unbroken >= size:
                self._index.setdefault(tuple(tokens[end + 1 - size : end + 1]), array("q")).append(end)
        self._repeats = self._repeats_of(tokens)

    def observe(self, token: int) -> None:
        """``token`` follows the history, which does not hold it yet."""
        length, size = len(self._history.tokens), self._settings.allowed_length
        self._unbroken = self._run(self._unbroken, token)
        if self._unbroken < size:
            self._repeats = _NONE
            return
        gram = (*(self._history.tail((), 0, size - 1) or ()), token)
        positions = self._index.setdefault(gram, array("q"))
        start = self._start(length + 1)
        if positions and positions[0] < start:
            del positions[: bisect_left(positions, start)]
        self._repeats = self._extended(self._repeats, positions)
        positions.append(length)

    def window(self, proposals: Sequence[int]) -> list[dict[int, float]]:
        """What each id loses at each of the ``len(proposals) + 1`` positions."""
        known, size = len(self._history.tokens), self._settings.allowed_length
        repeats, unbroken = self._repeats, self._unbroken
        new: _Index = {}
        result = [self._amounts(repeats, proposals, known)]
        for place, token in enumerate(proposals):
            unbroken = self._run(unbroken, token)
            gram = self._history.tail(proposals, place + 1, size) if unbroken >= size else None
            if gram is None:
                repeats = _NONE
            else:
                repeats = self._extended(repeats, self._index.get(gram, _EMPTY) + new.get(gram, _EMPTY))
                new.setdefault(gram, array("q")).append(known + place)
            result.append(self._amounts(repeats, proposals, known + place + 1))
        return result

    def _run(self, unbroken: int, token: int) -> int:
        """Tokens since the last breaker, ``token`` included."""
        return 0 if token in self._settings.breakers else unbroken + 1

    def _extended(self, repeats: _Repeats, positions: array[int]) -> _Repeats:
        """Repetitions that end at ``positions``, after those of the text without its last token."""
        if not positions:
            return _NONE
        ends = np.array(positions, np.int64)
        lengths = np.full(ends.size, self._settings.allowed_length)
        if repeats.positions.size:
            place = np.searchsorted(repeats.positions, ends - 1).clip(max=repeats.positions.size - 1)
            goes_on = repeats.positions[place] == ends - 1
            lengths[goes_on] = repeats.lengths[place[goes_on]] + 1
        return _Repeats(ends, lengths)

    def _repeats_of(self, tokens: Sequence[int]) -> _Repeats:
        """Repetitions at the end of a text whose index is made."""
        size = self._settings.allowed_length
        if self._unbroken < size:
            return _NONE
        ends = np.array(self._index[tuple(tokens[-size:])], np.int64)[:-1]
        if not ends.size:
            return _NONE
        shared = np.array(common_suffixes(tokens), np.int64)
        return _Repeats(ends, np.minimum(shared[ends], self._unbroken))

    def _start(self, length: int) -> int:
        """First position that counts in a text of ``length`` tokens."""
        last_n = self._settings.penalty_last_n
        return 0 if last_n < 0 else max(0, length - last_n)

    def _amounts(self, repeats: _Repeats, proposals: Sequence[int], length: int) -> dict[int, float]:
        """Penalties at the end of a text of ``length`` tokens; repetitions begin no earlier than what counts."""
        if not repeats.positions.size:
            return {}
        settings = self._settings
        sizes = np.minimum(repeats.lengths, repeats.positions + 1 - self._start(length))
        order = np.argsort(sizes, kind="stable")
        order = order[np.searchsorted(sizes[order], settings.allowed_length) :]
        followers = [self._history.token_at(proposals, end + 1) for end in repeats.positions[order].tolist()]
        longest = dict(zip(followers, sizes[order].tolist(), strict=True))  # the last of equal tokens is the longest
        return {token: self._amount(size) for token, size in longest.items() if token not in settings.breakers}

    def _amount(self, size: int) -> float:
        exponent = min(size - self._settings.allowed_length, self._largest_exponent)
        return min(self._settings.multiplier * float(self._settings.base) ** exponent, LARGEST)


_EMPTY: array[int] = array("q")


def common_suffixes(tokens: Sequence[int]) -> list[int]:
    """For each position how many tokens up to it equal the last tokens of the text, in O(text).

    The Z-function (Gusfield, Algorithms on Strings, section 1.4) of the text read backwards.
    """
    text = list(reversed(tokens))
    count = len(text)
    shared = [count] + [0] * (count - 1)
    left = right = 0
    for place in range(1, count):
        size = min(right - place, shared[place - left]) if place < right else 0
        while place + size < count and text[size] == text[place + size]:
            size += 1
        if place + size > right:
            left, right = place, place + size
        shared[place] = size
    shared.reverse()
    return shared
