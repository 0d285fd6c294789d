"""DRY penalty of one row: repetitions that the next token would make longer (spec 13.1, step 2). Host only.

The scheme is p-e-w's ("DRY: a modern repetition penalty", text-generation-webui pull request 5677) in the form of
llama.cpp: the penalty of a token is that of the longest repetition it extends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from .history import RowHistory
from .settings import DrySettings

#: No penalty exceeds this: enough to ban an id, small enough for float32.
LARGEST = 1e30


class DryTable:
    """Where the end of the text repeats earlier text, kept up to date token by token.

    ``_lengths``: position -> how many tokens up to it equal the last tokens of the text, for lengths of at least
    ``allowed_length``. Since each such position ends the same ``allowed_length`` tokens as the text, an index of these
    finds them, and lengths grow by one from those of the token before. A token costs O(repetitions it continues).
    """

    def __init__(self, settings: DrySettings, history: RowHistory) -> None:
        self._settings = settings
        self._history = history
        self._index: dict[tuple[int, ...], list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._unbroken = 0
        self._largest_exponent = int(math.log(LARGEST) / math.log(settings.base)) if settings.base > 1 else 0
        tokens = history.tokens
        for end, token in enumerate(tokens):
            size = self._run(self._unbroken, token)
            gram = tuple(tokens[end + 1 - settings.allowed_length : end + 1]) if size else None
            self._append(token, end, gram)

    def observe(self, token: int) -> None:
        """``token`` follows the history, which does not hold it yet."""
        gram = None
        if self._run(self._unbroken, token):
            gram = (*(self._history.tail((), 0, self._settings.allowed_length - 1) or ()), token)
        self._append(token, len(self._history.tokens), gram)

    def window(self, proposals: Sequence[int]) -> list[dict[int, float]]:
        """What each id loses at each of the ``len(proposals) + 1`` positions."""
        known = len(self._history.tokens)
        lengths, unbroken = self._lengths, self._unbroken
        new: dict[tuple[int, ...], list[int]] = {}
        result = [self._amounts(lengths, proposals, known)]
        for place, token in enumerate(proposals):
            complete = self._run(unbroken, token)
            unbroken = 0 if token in self._settings.breakers else unbroken + 1
            gram = self._history.tail(proposals, place + 1, self._settings.allowed_length) if complete else None
            if gram is None:
                lengths = {}
            else:
                lengths = self._extended(lengths, [*self._index.get(gram, ()), *new.get(gram, ())])
                new.setdefault(gram, []).append(known + place)
            result.append(self._amounts(lengths, proposals, known + place + 1))
        return result

    def _run(self, unbroken: int, token: int) -> bool:
        """Whether ``token``, after ``unbroken`` tokens without breaker, completes ``allowed_length`` of them."""
        return token not in self._settings.breakers and unbroken + 1 >= self._settings.allowed_length

    def _append(self, token: int, end: int, gram: tuple[int, ...] | None) -> None:
        """Take in the token at position ``end``; ``gram``: the tokens up to it, if no breaker is among them."""
        self._unbroken = 0 if token in self._settings.breakers else self._unbroken + 1
        if gram is None:
            self._lengths = {}
            return
        positions = self._index.setdefault(gram, [])
        if positions and positions[0] < self._start(end + 1):
            del positions[: bisect_left(positions, self._start(end + 1))]
        self._lengths = self._extended(self._lengths, positions)
        positions.append(end)

    def _extended(self, lengths: Mapping[int, int], positions: Sequence[int]) -> dict[int, int]:
        shortest = self._settings.allowed_length - 1
        return {position: lengths.get(position - 1, shortest) + 1 for position in positions}

    def _start(self, length: int) -> int:
        """First position that counts in a text of ``length`` tokens."""
        last_n = self._settings.penalty_last_n
        return 0 if last_n < 0 else max(0, length - last_n)

    def _amounts(self, lengths: Mapping[int, int], proposals: Sequence[int], length: int) -> dict[int, float]:
        """Penalties at the end of a text of ``length`` tokens; repetitions begin no earlier than what counts."""
        settings = self._settings
        longest: dict[int, int] = {}
        start = self._start(length)
        for position, repeated in lengths.items():
            size = min(repeated, position + 1 - start)
            if size >= settings.allowed_length:
                token = self._history.token_at(proposals, position + 1)
                if token not in settings.breakers:
                    longest[token] = max(size, longest.get(token, 0))
        return {token: self._amount(size) for token, size in longest.items()}

    def _amount(self, size: int) -> float:
        exponent = min(size - self._settings.allowed_length, self._largest_exponent)
        return min(self._settings.multiplier * float(self._settings.base) ** exponent, LARGEST)
