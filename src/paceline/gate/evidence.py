"""What a drafter's proposals were worth so far: counters of right and wrong ones, per row and for the group (spec 11.2).

A proposal is filed by its place in the window, or by the match it rests on where that is known. Knows no costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.ports import Evidence


@dataclass(frozen=True)
class EvidenceSettings:
    """How evidence is kept.

    - ``fast``, ``slow``: what one observation leaves of the older ones; rates are the mean over both.
    - ``weight``: observations that a start (the prior, the group's evidence) is worth.
    - ``prior``: rate of a place in the window that nothing is known of.
    - ``matches``: first match lengths of the classes that proposals with a known match are filed by; ``match_priors``:
      rates of these classes before anything was observed.
    """

    fast: float = 0.85
    slow: float = 0.98
    weight: float = 5.0
    prior: float = 0.6
    matches: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 11, 17)
    match_priors: tuple[float, ...] = (0.17, 0.3, 0.58, 0.66, 0.74, 0.81, 0.86, 0.9, 0.95)


class Slots:
    """Where proposals are filed: slots 0 .. depth-1 for places in the window, then one per class of match lengths.

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
    """Decayed counts of right and wrong proposals per slot, and the rates that follow from them."""

    def __init__(self, slots: Slots, settings: EvidenceSettings) -> None:
        self._slots = slots
        self._decays = (settings.fast, settings.slow)
        self._weight = settings.weight
        self._right = [[rate * settings.weight for rate in slots.priors] for _ in self._decays]
        self._wrong = [[(1.0 - rate) * settings.weight for rate in slots.priors] for _ in self._decays]
        self._seen = [False] * slots.count
        self.rates = list(slots.priors)

    def start_from(self, other: Counters) -> None:
        """Take over another's rates, with the weight of a start."""
        for mine, theirs, opposite in (
            (self._right, other._right, other._wrong),
            (self._wrong, other._wrong, other._right),
        ):
            for number in range(len(self._decays)):
                pairs = zip(theirs[number], opposite[number], strict=True)
                mine[number] = [self._weight * count / (count + against) for count, against in pairs]
        self._seen = list(other._seen)
        self.rates = list(other.rates)

    def scale(self, factor: float) -> None:
        for counts in (*self._right, *self._wrong):
            counts[:] = [c * factor for c in counts]

    def add(self, slot: int, right: float, wrong: float) -> None:
        """Observations in one slot: the older ones fade by as many steps."""
        total = right + wrong
        for decay, rights, wrongs in zip(self._decays, self._right, self._wrong, strict=True):
            kept = decay**total
            rights[slot] = rights[slot] * kept + right
            wrongs[slot] = wrongs[slot] * kept + wrong
        self._seen[slot] = True

    def settle(self, changed: Iterable[int]) -> None:
        """Bring the rates of ``changed`` slots up to date; a place never observed takes the rate of the one before."""
        for slot in changed:
            pairs = zip(self._right, self._wrong, strict=True)
            self.rates[slot] = sum(right[slot] / (right[slot] + wrong[slot]) for right, wrong in pairs) / 2
        for place in range(1, self._slots.depth):
            if not self._seen[place]:
                self.rates[place] = self.rates[place - 1]

    def chances(self, match: int, most: int) -> list[float]:
        """Chance that the first j proposals are all right, for j = 1 .. ``most``."""
        found: list[float] = []
        chance = 1.0
        for slot in self._slots.of(match)[:most]:
            chance *= self.rates[slot]
            found.append(chance)
        return found


def tally(entry: Evidence, slots: Slots) -> dict[int, list[float]]:
    """Right and wrong proposals of one entry by slot (spec 11.3); those behind a wrong one were not tested."""
    found: dict[int, list[float]] = {}
    filed: Sequence[int] = slots.of(entry.match)[: min(entry.drafted, entry.accepted + 1)]
    for place, slot in enumerate(filed):
        counts = found.setdefault(slot, [0.0, 0.0])
        counts[0 if place < entry.accepted else 1] += 1.0
    return found
