"""Notices when speculation has been losing for a while, and says why. Pure numbers of draft rounds; reads no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What keeps speculation from paying.
Reason = Literal["acceptance too low", "draft too dear", "verify too dear"]

#: A round that took more than so many times what was expected of it was disturbed by something else.
_DISTURBED = 4.0
_FAIR_ACCEPTANCE = 0.5


@dataclass(frozen=True)
class DraftRound:
    """One round in which ``rows`` rows decoded and some had drafter proposals: ``tokens`` delivered in all, proposals
    ``drafted`` and ``accepted``. ``plain``, ``verify``, ``draft``: expected seconds of a plain round of these rows, of
    the window, of the drafter. ``seconds``: measured, ``None`` = not known, then what was expected counts."""

    rows: int
    tokens: int
    drafted: int
    accepted: int
    plain: float
    verify: float
    draft: float
    seconds: float | None = None

    @property
    def expected(self) -> float:
        return self.verify + self.draft

    @property
    def taken(self) -> float:
        """Seconds the round counts with."""
        return self.expected if self.seconds is None else min(self.seconds, _DISTURBED * self.expected)


@dataclass(frozen=True)
class LosingReport:
    """A stretch of draft rounds: ``speed`` in tokens per second over that of plain decoding, and why it is below 1."""

    rounds: int
    speed: float
    reason: Reason
    acceptance: float
    draft_share: float

    def __str__(self) -> str:
        return (
            f"speculation has been losing: {self.speed:.2f}x the speed of plain decoding over {self.rounds} draft "
            f"rounds, {self.reason} ({self.acceptance:.0%} of proposals accepted, the drafter takes "
            f"{self.draft_share:.0%} of a round); try fewer proposals (spec_tokens), another drafter (spec_method), or "
            "leave spec_adaptive on"
        )


class LosingWatch:
    """Judges stretches of ``window`` draft rounds. One that is slower than ``margin`` times plain decoding is losing.

    ``losing`` counts such stretches; ``reason`` is why the last stretch lost, ``None`` if it did not. Reports are given
    for the first losing stretch and then at most every ``quiet`` rounds.
    """

    def __init__(self, window: int = 128, margin: float = 0.95, quiet: int = 5000) -> None:
        self._window = window
        self._margin = margin
        self._quiet = quiet
        self._rounds: list[DraftRound] = []
        self._until_report = 0
        self.losing = 0
        self.reason: Reason | None = None

    def observe(self, found: DraftRound) -> LosingReport | None:
        """Take one draft round; a report if somebody should hear of it now."""
        self._until_report = max(0, self._until_report - 1)
        self._rounds.append(found)
        if len(self._rounds) < self._window:
            return None
        report = judge(self._rounds)
        self._rounds = []
        self.reason = None
        if report.speed >= self._margin:
            return None
        self.losing += 1
        self.reason = report.reason
        if self._until_report:
            return None
        self._until_report = self._quiet
        return report


def judge(rounds: list[DraftRound]) -> LosingReport:
    """Speed of a stretch against plain decoding and, whatever the speed is, what weighs on it most.

    If the rounds would lose with every proposal accepted, or most are, the dearer of drafter and window is to blame,
    else the acceptance.
    """
    taken = sum(each.taken for each in rounds)
    gained = sum(each.tokens * each.plain / each.rows for each in rounds)
    drafted, accepted = sum(each.drafted for each in rounds), sum(each.accepted for each in rounds)
    draft = sum(each.draft for each in rounds)
    verify = sum(each.verify - each.plain for each in rounds)
    best = sum(each.drafted * each.plain / each.rows for each in rounds)
    acceptance = accepted / drafted if drafted else 0.0
    reason: Reason = "draft too dear" if draft >= verify else "verify too dear"
    if best > draft + verify and acceptance < _FAIR_ACCEPTANCE:
        reason = "acceptance too low"
    expected = sum(each.expected for each in rounds)
    return LosingReport(len(rounds), gained / taken, reason, acceptance, draft / expected)
