"""Texts that spans are copied from: a prediction, fixed and shared, and a request's own text, which grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import log2

from .index import GramIndex

#: Ids that must repeat before a text is found again from nothing (spec 12.2).
PREDICTION_ANCHOR, OWN_ANCHOR = 3, 8
#: What one id that agrees tells, in bits, at least and at most; ids of a text whose ids are not counted tell the usual.
_LEAST_BITS, _MOST_BITS, _USUAL_BITS = 1.0, 8.0, 5.0


class Prediction:
    """The text a request is expected to repeat. Built once, on the caller's thread (about 1 microsecond per id); rows
    only read it, so the samples of one prompt share it."""

    is_prediction = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = list(tokens)
        self.index = GramIndex(self.tokens, PREDICTION_ANCHOR)
        self._bits = _running_bits(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def bits(self, start: int, end: int) -> float:
        """How much it tells that a text agrees with ids ``start`` to ``end``: a rare id tells more than a newline."""
        return self._bits[end] - self._bits[start]


class OwnText:
    """Prompt and output of one request."""

    is_prediction = False

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = list(prompt)
        self.index = GramIndex(self.tokens, OWN_ANCHOR)

    def __len__(self) -> int:
        return len(self.tokens)

    def bits(self, start: int, end: int) -> float:
        """As :meth:`Prediction.bits`, without counting ids."""
        return _USUAL_BITS * (end - start)


Source = Prediction | OwnText


def _running_bits(tokens: Sequence[int]) -> list[float]:
    """Sums over the first 0, 1, ... ids of the information of each: log2(ids / occurrences), within bounds."""
    total = len(tokens)
    bits = {token: min(max(log2(total / n), _LEAST_BITS), _MOST_BITS) for token, n in Counter(tokens).items()}
    return list(accumulate((bits[token] for token in tokens), initial=0.0))


class Span:
    """A run of ids copied from ``source``, from ``start`` on: ``length`` ids that the text may go on with.

    A span that reaches the end of a growing text goes on as if that repeated itself. ``weight``: how much spoke for it
    when it was proposed, in bits.
    """

    __slots__ = ("_period", "_tokens", "length", "source", "start", "weight")

    def __init__(self, source: Source, start: int, length: int, weight: float) -> None:
        self.source = source
        self.start = start
        self.length = length
        self.weight = weight
        self._tokens = source.tokens
        self._period = len(source.tokens) - start

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> int:
        return self._tokens[self.start + place % self._period]

    def ids(self, first: int, count: int) -> list[int]:
        """``count`` ids from the ``first`` on, fewer where the span ends."""
        end = min(first + count, self.length)
        if end <= self._period:
            return self._tokens[self.start + first : self.start + end]
        return [self[place] for place in range(first, end)]

    def bits(self, matched: int) -> float:
        """What its first ``matched`` ids tell if the text went on with them."""
        return self.source.bits(self.start, self.start + matched)
