"""Where a text stands in a source that it follows with edits: a few hypotheses, weighed by what speaks for each.

An edit is an insertion, a deletion or a replacement; which one it was shows with the next few ids. Scores are bits:
what the ids that agree tell, less what the edits cost, as in a sequence alignment with affine gaps (Gotoh 1982) whose
beam is kept narrow. Knows no spans and no rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from .source import Source

#: Hypotheses kept, and how far behind the best one in bits.
_BEAM, _BEHIND = 6, 15.0
#: Bits of agreement that settle where a text is.
_SETTLED = 20.0
#: Ids read since the text was last settled in the source, beyond which it is lost and only a long match finds it.
_LOST = 64
#: Prices in bits: opening an edit, an id more in it, an insertion over a replacement, doubling a gap, any other place.
_OPEN, _MORE, _INSERTED, _GAP, _JUMP = 2.0, 0.5, 0.5, 1.5, 6.0
#: A deletion is looked for over so many ids of the source.
_AHEAD = 64


class Hypothesis(NamedTuple):
    """The text goes on at ``place``. ``score`` compares hypotheses, ``run`` is what has spoken for this one since its
    last edit, whose price included; both in bits. ``edited``: its newest id is part of an edit."""

    score: float
    place: int
    run: float
    edited: bool


class Alignment:
    """Follows a text along ``source``, from ``place`` on (``None`` = it is not in it yet)."""

    def __init__(self, source: Source, place: int | None) -> None:
        self.source = source
        self._since = 0
        self._beam = [] if place is None else [Hypothesis(0.0, place, 0.0, False)]

    def best(self) -> Hypothesis | None:
        """The best hypothesis that has ids left to propose."""
        end = len(self.source)
        return next((hypothesis for hypothesis in self._beam if hypothesis.place < end), None)

    def feed(self, ids: Sequence[int]) -> None:
        """The text went on with ``ids``; a source that is this text itself does not hold them yet, and gets them one by
        one."""
        rest = list(ids)
        while rest:
            if not self._beam:
                self._since += len(rest)
                return
            agreed = min(self._agreed(hypothesis.place, rest) for hypothesis in self._beam)
            if agreed:
                self._advance(agreed)
            else:
                self._read(rest[0])
            del rest[: agreed or 1]

    def seek(self, text: Sequence[int]) -> None:
        """Look the end of ``text`` up in the whole source, unless the text is settled in it."""
        leader = self._beam[0] if self._beam else None
        if leader is not None and leader.run >= _SETTLED:
            return
        self.source.index.extend()
        anchor = self.source.index.find(text, None if leader is None else leader.place)
        if anchor is None:
            return
        length = min(anchor.length, self._since) if self._beam else anchor.length
        run = self.source.bits(anchor.place - length, anchor.place) - _JUMP - log2(1 + len(self.source))
        self._keep([*self._beam, Hypothesis(run, anchor.place, run, False)])

    def _agreed(self, place: int, ids: list[int]) -> int:
        """How many leading ``ids`` follow at ``place``."""
        tokens = self.source.tokens
        if tokens[place : place + 1] != ids[:1]:
            return 0
        if tokens[place : place + len(ids)] == ids:
            return len(ids)
        count, end = 1, min(len(ids), len(tokens) - place)
        while count < end and tokens[place + count] == ids[count]:
            count += 1
        return count

    def _advance(self, count: int) -> None:
        """All hypotheses agree with the next ``count`` ids. They gain the same, so their order stands."""
        self._since += count
        place = self._beam[0].place
        bits = self.source.bits(place, place + count)
        self._settle([Hypothesis(h.score + bits, h.place + count, h.run + bits, False) for h in self._beam])

    def _read(self, token: int) -> None:
        """One id: hypotheses that expect it agree, the others are edited in every way that explains it."""
        self._since += 1
        tokens = self.source.tokens
        found: list[Hypothesis] = []
        for hypothesis in self._beam:
            score, place, run, _ = hypothesis
            if place < len(tokens) and tokens[place] == token:
                bits = self.source.bits(place, place + 1)
                found.append(Hypothesis(score + bits, place + 1, run + bits, False))
            else:
                found += self._edits(hypothesis, token)
        if self._since > _LOST:
            found = [hypothesis for hypothesis in found if hypothesis.run > 0 and not hypothesis.edited]
        self._keep(found)

    def _edits(self, hypothesis: Hypothesis, token: int) -> list[Hypothesis]:
        """``token`` replaces the id expected, or was inserted before it, or ids before the next ``token`` are gone."""
        score, place, _, edited = hypothesis
        price = _MORE if edited else _OPEN
        found = [
            Hypothesis(score - price, place + 1, -price, True),
            Hypothesis(score - price - _INSERTED, place, -price - _INSERTED, True),
        ]
        tokens = self.source.tokens
        try:
            at = tokens.index(token, place + 1, min(len(tokens), place + _AHEAD))
        except ValueError:
            return found
        gain = self.source.bits(at, at + 1) - price - _GAP * log2(1 + at - place)
        return [*found, Hypothesis(score + gain, at + 1, gain, False)]

    def _keep(self, found: list[Hypothesis]) -> None:
        """The best few, one for each place."""
        best: dict[int, Hypothesis] = {}
        for hypothesis in found:
            other = best.get(hypothesis.place)
            if other is None or hypothesis.score > other.score:
                best[hypothesis.place] = hypothesis
        ranked = sorted(best.values(), reverse=True)[:_BEAM]
        self._settle([hypothesis for hypothesis in ranked if hypothesis.score > ranked[0].score - _BEHIND])

    def _settle(self, beam: list[Hypothesis]) -> None:
        """Go on with these, the best first. While it is settled, scores count from its newest id."""
        if beam and beam[0].run >= _SETTLED:
            self._since = 0
            top = beam[0].score
            beam = [hypothesis._replace(score=hypothesis.score - top) for hypothesis in beam]
        self._beam = beam
