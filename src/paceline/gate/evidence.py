"""What a drafter's proposals were worth so far: counts of right and wrong ones, per row and for the group (spec 11.2).

A proposal is filed by its place in the window, or by the match it rests on where that is known. Knows no costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.ports import Evidence


@dataclass(frozen=True)
class EvidenceSettings:
    """How evidence is kept.

    - ``fast``, ``slow``: what one observation leaves of the older ones; rates are the mean over both.
    - ``weight``: observations that a start (the prior, the group's evidence) is worth.
    - ``drift``: how far a rate that was not observed moves per decision: a row's towards the group's, the group's
      towards that of the place before.
    - ``prior``: rate of a place in the window that nothing is known of.
    - ``matches``: first match lengths (as ``Draft.matches`` counts them) of the classes that proposals with a known
      match are filed by; ``match_priors``: rates of these classes before anything was observed.
    """

    fast: float = 0.95
    slow: float = 0.98
    weight: float = 5.0
    drift: float = 0.02
    prior: float = 0.6
    matches: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 11, 17)
    match_priors: tuple[float, ...] = (0.17, 0.3, 0.58, 0.66, 0.74, 0.81, 0.86, 0.9, 0.95)


class Slots:
    """Where proposals are filed: slots 0 .. depth-1 for places in the window, then one per class of matches.

    A proposal behind a match of m tokens and j-1 right proposals rests on a match of m + j - 1 tokens.
    """

    def __init__(self, depth: int, settings: EvidenceSettings) -> None:
        self.depth = depth
        self.count = depth + len(settings.matches)
        self.priors = [settings.prior] * depth + list(settings.match_priors)
        self._starts = settings.matches
        self._by_match: dict[int, tuple[int, ...]] = {0: tuple(range(depth))}

    def of(self, match: int) -> tuple[int, ...]:
        """Slots of proposals 1 .. depth behind a match of ``match`` tokens (0 = not known)."""
        match = max(0, min(match, self._starts[-1]))
        if match not in self._by_match:
            lengths = range(match, match + self.depth)
            self._by_match[match] = tuple(self.depth - 1 + bisect_right(self._starts, length) for length in lengths)
        return self._by_match[match]


class Counters:
    """Decayed counts of right and wrong proposals per slot, and the rates that follow from them.

    ``start``: take over the rates of these counters (the group's). ``now``: number of the newest decision; rates that
    are not observed drift from then on. ``weight``: of the start, in place of that of the settings.
    """

    def __init__(
        self,
        slots: Slots,
        settings: EvidenceSettings,
        start: Counters | None = None,
        now: int = 0,
        weight: float | None = None,
    ) -> None:
        weight = settings.weight if weight is None else weight
        self._slots = slots
        self._settings = settings
        self._last = [now] * slots.count
        self._known = 0
        self.rates = list(slots.priors)
        self._fast_right, self._fast_wrong = _counts(self.rates, weight)
        self._slow_right, self._slow_wrong = _counts(self.rates, weight)
        if start is not None:
            self.rates, self._known = list(start.rates), start._known
            fast = _shares(start._fast_right, start._fast_wrong)
            slow = _shares(start._slow_right, start._slow_wrong)
            self._fast_right, self._fast_wrong = _counts(fast, weight)
            self._slow_right, self._slow_wrong = _counts(slow, weight)

    def add(self, counts: Mapping[int, tuple[float, float]]) -> None:
        """Right and wrong proposals by slot; the older ones fade by as many steps as there are new ones."""
        fast_right, fast_wrong, slow_right, slow_wrong = (
            self._fast_right,
            self._fast_wrong,
            self._slow_right,
            self._slow_wrong,
        )
        for slot, (right, wrong) in counts.items():
            fast, slow = self._settings.fast ** (right + wrong), self._settings.slow ** (right + wrong)
            fast_right[slot] = a = fast_right[slot] * fast + right
            fast_wrong[slot] = b = fast_wrong[slot] * fast + wrong
            slow_right[slot] = c = slow_right[slot] * slow + right
            slow_wrong[slot] = d = slow_wrong[slot] * slow + wrong
            self.rates[slot] = (a / (a + b) + c / (c + d)) / 2
        self._pass_on(counts)

    def _pass_on(self, changed: Iterable[int]) -> None:
        """A place never observed takes the rate of the one before it. Places are observed from the first on."""
        depth = self._slots.depth
        self._known = max(self._known, *(slot + 1 for slot in changed if slot < depth), 0)
        if 0 < self._known < depth:
            self.rates[self._known : depth] = [self.rates[self._known - 1]] * (depth - self._known)

    def catch_up(self, slots: Iterable[int], towards: Sequence[float], now: int) -> None:
        """Make the drift of these slots part of the counts; they are observed at decision ``now``."""
        for slot in slots:
            age, self._last[slot] = now - self._last[slot] - 1, now
            if age > 0:
                kept = (1.0 - self._settings.drift) ** age
                _drift(self._fast_right, self._fast_wrong, slot, towards[slot], kept)
                _drift(self._slow_right, self._slow_wrong, slot, towards[slot], kept)

    def drifted(self, now: int) -> list[float]:
        """The group's rates at decision ``now``. A place that is not reached any more takes on the rate of the one
        before it, else a drafter that was unlucky once would not be asked so deep again."""
        found = list(self.rates)
        keep = 1.0 - self._settings.drift
        for place in range(1, self._slots.depth):
            age = now - self._last[place] - 1
            if age > 0:
                found[place] = found[place - 1] + (found[place] - found[place - 1]) * keep**age
        return found

    def chances(self, match: int, most: int, towards: Sequence[float], now: int) -> list[float]:
        """Chance that the first j proposals are all right, for j = 1 .. ``most``, at decision ``now``. ``towards``: the
        group's rates by slot."""
        found: list[float] = []
        chance, keep = 1.0, 1.0 - self._settings.drift
        rates, last = self.rates, self._last
        for slot in self._slots.of(match)[:most]:
            age = now - last[slot] - 1
            if age <= 0:
                chance *= rates[slot]
            else:
                chance *= towards[slot] + (rates[slot] - towards[slot]) * keep**age
            found.append(chance)
        return found


def _shares(rights: Sequence[float], wrongs: Sequence[float]) -> list[float]:
    return [right / (right + wrong) for right, wrong in zip(rights, wrongs, strict=True)]


def _counts(rates: Sequence[float], weight: float) -> tuple[list[float], list[float]]:
    return [rate * weight for rate in rates], [(1.0 - rate) * weight for rate in rates]


def _drift(rights: list[float], wrongs: list[float], slot: int, towards: float, kept: float) -> None:
    """Move one slot's rate ``towards`` another until ``kept`` of the distance is left. The weight stays."""
    total = rights[slot] + wrongs[slot]
    rate = towards + (rights[slot] / total - towards) * kept
    rights[slot], wrongs[slot] = rate * total, (1.0 - rate) * total


def tally(entry: Evidence, slots: Slots) -> dict[int, tuple[float, float]]:
    """Right and wrong proposals of one entry by slot (spec 11.3); those behind a wrong one were not tested."""
    found: dict[int, tuple[float, float]] = {}
    filed = slots.of(entry.match)
    accepted = entry.accepted
    for slot in filed[:accepted]:
        right, wrong = found.get(slot, (0.0, 0.0))
        found[slot] = (right + 1.0, wrong)
    if accepted < min(entry.drafted, len(filed)):
        right, wrong = found.get(filed[accepted], (0.0, 0.0))
        found[filed[accepted]] = (right, wrong + 1.0)
    return found
