"""A fill session: follows one request's text along a source and proposes the run that may come next (spec 12).

Every delivered token is fed once, by :meth:`FillSession.observe` or as part of a committed span. It knows no rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.stats import FillStats
from .align import Alignment
from .source import OwnText, Prediction, Span

#: Ids of the prompt that a prediction may be found by.
_PROMPT_TAIL = 32
#: Ids worth verifying at once, per bit that speaks for a span.
_REACH = 4.0
#: Memory of how many verified ids were right: decay per round and the ids it starts with.
_DECAY, _PRIOR = 0.9, 32.0
#: Share of right ids below which less is verified, and the bits a span then needs to be verified at all.
_ENOUGH, _CAUTION = 0.2, 8.0
#: Wrong ids that the memory starts with.
_PRIOR_WRONG = 0.5


class FillSession:
    """Spans for one request. ``prediction``: the text expected; ``own``: whether runs of the prompt and the output may
    be copied too. The session of a prediction starts at its beginning."""

    def __init__(self, prompt: Sequence[int], prediction: Prediction | None, own: bool) -> None:
        self.stats = FillStats()
        self._prediction = None if prediction is None else Alignment(prediction, 0)
        self._own = Alignment(OwnText(prompt), None) if own else None
        self._text = self._own.source.tokens if self._own is not None else list(prompt[-_PROMPT_TAIL:])
        self._right = self._tested = _PRIOR
        self._wrong = _PRIOR_WRONG

    def observe(self, token: int) -> None:
        """A delivered token that no span covered."""
        self._feed((token,))

    def propose(self, max_tokens: int) -> Span | None:
        """A span of at most ``max_tokens`` ids for what comes next, or ``None``. Nothing is certain about it: its first
        ids must be drawn before the rest is worth a wide window."""
        chosen = None
        for alignment in (self._prediction, self._own):
            if alignment is None:
                continue
            alignment.seek(self._text)
            best = alignment.best()
            if best is not None and (chosen is None or best.run > chosen[1].run):
                chosen = alignment.source, best
        if chosen is None or max_tokens <= 0:
            return None
        source, best = chosen
        length = min(max_tokens, len(source) - best.place) if source.is_prediction else max_tokens
        return Span(source, best.place, length, best.run)

    def commit(self, span: Span, matched: int) -> None:
        """The text went on with the first ``matched`` ids of ``span``. Called once for every proposed span."""
        stats = self.stats
        stats.spans += 1
        if not matched:
            return
        stats.started += 1
        stats.matched += matched
        if span.source.is_prediction:
            stats.accepted_prediction_tokens += matched
        self._feed(span.ids(0, matched))

    def verified(self, span: Span, proposed: int, accepted: int) -> None:
        """A window held ``proposed`` ids of ``span``, the first ``accepted`` of which were right."""
        stats = self.stats
        stats.rounds += 1
        stats.verified += proposed
        stats.accepted += accepted
        if span.source.is_prediction:
            stats.rejected_prediction_tokens += proposed - accepted
        self._right = self._right * _DECAY + accepted
        self._tested = self._tested * _DECAY + proposed
        self._wrong = self._wrong * _DECAY + (accepted < proposed)

    def reach(self, span: Span, matched: int) -> int:
        """How many ids of ``span`` are worth verifying at once after ``matched`` of them: more, the more agrees and the
        rarer those ids are; fewer where most were wrong lately. 0 = not yet."""
        return int(_REACH * self._bits(span, matched) * self._trust)

    def expected(self, span: Span, matched: int, count: int) -> float:
        """Expected number of right ids in a window of the next ``count`` ids of ``span``: the place is right with the
        odds that its bits give, and then every id is with the share that was lately."""
        wrong = self._wrong / (self._wrong + self._right)
        right = (1.0 - (1.0 - wrong) ** count) / wrong
        place = 1.0 - math.pow(0.5, self._bits(span, matched))
        return place * right

    @property
    def _trust(self) -> float:
        return min(1.0, self._right / (self._tested * _ENOUGH))

    def _bits(self, span: Span, matched: int) -> float:
        """What speaks for a span after ``matched`` of its ids; not less than nothing."""
        return max(0.0, span.weight + span.bits(matched) - _CAUTION * (1.0 - self._trust))

    def _feed(self, ids: Sequence[int]) -> None:
        if self._prediction is not None:
            self._prediction.feed(ids)
        for token in ids:
            if self._own is not None:
                self._own.feed((token,))
            self._text.append(token)
