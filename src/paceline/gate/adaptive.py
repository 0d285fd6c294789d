"""The adaptive gate: chooses each row's depth from its evidence and the costs of a round (spec 11).

Host only and deterministic: it reads no clock, draws nothing, and knows neither tokens nor drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.costs import CostTable
from ..core.ports import Evidence, GateRow
from .decision import Choice, RoundCosts, choose
from .evidence import Counters, EvidenceSettings, Slots, tally

#: Contexts are taken together in buckets of this many tokens, so that costs can be looked up once for many decisions.
CONTEXT_BUCKET = 128
#: Sizes of round whose costs are kept; beyond that all are looked up again.
_KEPT_ROUNDS = 256


@dataclass(frozen=True)
class GateSettings:
    """When to draft at all, and when to try again.

    - ``margin``: what a window with proposals must be worth, in units of the same round without.
    - ``probe_after``: a probe follows so many decisions without proposals and without evidence. The interval doubles at
      each probe, up to ``probe_at_most``, and is the first one again after ``probe_settled`` observed rounds in a row.
    - ``probe_weight``: observations that the fresh evidence of a probe is worth: few, so that it is soon refuted.
    """

    margin: float = 1.03
    probe_after: int = 16
    probe_at_most: int = 256
    probe_settled: int = 32
    probe_weight: float = 3.0
    evidence: EvidenceSettings = field(default_factory=EvidenceSettings)


class AdaptiveGate:
    """Implements :class:`paceline.core.ports.Gate`. ``depth``: the drafter's largest."""

    def __init__(self, costs: CostTable, depth: int, settings: GateSettings | None = None) -> None:
        self._settings = settings or GateSettings()
        self._slots = Slots(max(1, depth), self._settings.evidence)
        self._costs = costs
        self._rounds: dict[tuple[int, int], RoundCosts] = {}
        self.reset()

    def reset(self) -> None:
        """Restore the fresh state: prior evidence, no rows, no probe."""
        self._group = Counters(self._slots, self._settings.evidence)
        self._rows: dict[int, Counters] = {}
        self._decisions = 0
        self._probes = _ProbeClock(self._settings)
        self._expected = (1.0, 1.0)

    @property
    def probing(self) -> bool:
        """Whether the last decision was a probe."""
        return self._probes.probing

    @property
    def expected_speedup(self) -> float:
        """Tokens per second expected of the last decision, in units of the same round without proposals."""
        return self._expected[0] / self._expected[1]

    def join(self, index: int) -> None:
        """A row joined: its evidence starts from the group's."""
        self._rows[index] = Counters(self._slots, self._settings.evidence, self._group, self._decisions)

    def leave(self, index: int) -> None:
        """The row is gone; its evidence is forgotten. Idempotent."""
        self._rows.pop(index, None)

    def correct(self, costs: CostTable) -> None:
        """Decide with these costs from now on."""
        self._costs = costs
        self._rounds.clear()

    def rates(self, index: int, match: int = 0) -> list[float]:
        """The row's rates of acceptance by place in the window, behind a match of ``match`` tokens (0 = not known)."""
        rates = self._rows[index].rates
        return [rates[slot] for slot in self._slots.of(match)]

    def next(self, rows: Sequence[GateRow]) -> list[int]:
        """One depth per row, each within 0 .. its cap."""
        self._decisions += 1
        self._probes.tick()
        caps = [0 if row.spanned else max(0, row.cap) for row in rows]
        if not any(caps) or self._probes.awaiting():
            return [0] * len(rows)
        choice = self._decide(rows, caps)
        if any(choice.depths):
            self._probes.drafted()
            return choice.depths
        if self._probes.due():
            return self._probe(rows, caps)
        return choice.depths

    def observe(self, entries: Sequence[Evidence]) -> None:
        """What one round and the probes that it settled showed. Rows that have left are ignored."""
        seen: dict[int, list[tuple[float, float]]] = {}
        group = self._group.drifted(self._decisions)
        for entry in entries:
            row = self._rows.get(entry.index)
            if row is None:
                continue
            found = tally(entry, self._slots)
            row.catch_up(found, group, self._decisions)
            row.add(found)
            for slot, pair in found.items():
                seen.setdefault(slot, []).append(pair)
        if seen:
            self._probes.observed()
            self._group.catch_up(seen, group, self._decisions)
            self._group.add({slot: _mean(pairs) for slot, pairs in seen.items()})

    def _decide(self, rows: Sequence[GateRow], caps: Sequence[int]) -> Choice:
        """The best depths, or none if they are not worth the margin (spec 11.5)."""
        costs = self._round_costs(rows)
        group = self._group.drifted(self._decisions)
        choice = choose([self._chances(row, cap, group) for row, cap in zip(rows, caps, strict=True)], costs)
        if any(choice.depths) and not self._pays(choice.tokens, choice.cost, len(rows), costs.plain):
            choice = Choice([0] * len(rows), float(len(rows)), costs.plain)
        self._expected = (choice.tokens / choice.cost, len(rows) / costs.plain)
        return choice

    def _pays(self, tokens: float, cost: float, rows: int, plain: float) -> bool:
        return tokens * plain >= self._settings.margin * rows * cost

    def _chances(self, row: GateRow, cap: int, group: Sequence[float]) -> list[float]:
        most = min(cap, row.remaining - 1, self._slots.depth)
        if most <= 0:
            return []
        if row.index not in self._rows:
            self.join(row.index)
        return self._rows[row.index].chances(row.match, most, group, self._decisions)

    def _round_costs(self, rows: Sequence[GateRow]) -> RoundCosts:
        context = sum(row.context for row in rows) // len(rows)
        key = (len(rows), context // CONTEXT_BUCKET)
        if key not in self._rounds:
            if len(self._rounds) >= _KEPT_ROUNDS:
                self._rounds.clear()
            self._rounds[key] = RoundCosts(self._costs, len(rows), key[1] * CONTEXT_BUCKET + CONTEXT_BUCKET // 2)
        return self._rounds[key]

    def _fresh(self) -> Counters:
        """Evidence of a row that is to be tried again."""
        settings = self._settings
        return Counters(self._slots, settings.evidence, None, self._decisions, settings.probe_weight)

    def probe_depth(self, rows: Sequence[GateRow]) -> int:
        """The deepest common depth that would be worth the margin if every proposal were right (spec 11.6)."""
        costs = self._round_costs(rows)
        caps = [0 if row.spanned else max(0, row.cap) for row in rows]
        for depth in range(max(caps), 0, -1):
            depths = [min(cap, depth) for cap in caps]
            if self._pays(len(rows) + sum(depths), costs.of(depths), len(rows), costs.plain):
                return depth
        return 0

    def _probe(self, rows: Sequence[GateRow], caps: Sequence[int]) -> list[int]:
        """Rows forget what they have seen, and draft once (spec 11.6)."""
        most = self.probe_depth(rows)
        if most == 0:
            self._probes.postpone()
            return [0] * len(rows)
        for row in rows:
            self._rows[row.index] = self._fresh()
        self._probes.start()
        choice = self._decide(rows, caps)
        pairs = zip(caps, choice.depths, strict=True)
        return [min(cap, max(1, min(most, depth))) for cap, depth in pairs]


class _ProbeClock:
    """When to probe, counted in decisions (spec 11.6)."""

    def __init__(self, settings: GateSettings) -> None:
        self._first, self._longest, self._settled = settings.probe_after, settings.probe_at_most, settings.probe_settled
        self._interval = self._first
        self._idle = self._awaited = self._run = 0
        self._observed = False
        self.probing = False

    def tick(self) -> None:
        """A decision is to be made."""
        self.probing = False
        self._run = self._run + 1 if self._observed else 0
        self._observed = False
        if self._run >= self._settled:
            self._interval = self._first

    def awaiting(self) -> bool:
        """Whether what a probe showed has still to arrive."""
        self._awaited = max(0, self._awaited - 1)
        return self._awaited > 0

    def drafted(self) -> None:
        self._idle = 0

    def due(self) -> bool:
        """A decision without proposals: whether it is to be a probe."""
        self._idle += 1
        return self._idle >= self._interval

    def start(self) -> None:
        self._awaited = self._interval
        self._interval = min(self._longest, 2 * self._interval)
        self._idle = 0
        self.probing = True

    def postpone(self) -> None:
        """Nothing could pay: ask again after another interval."""
        self._idle = 0

    def observed(self) -> None:
        """Evidence arrived: there is no need to probe for it."""
        self._observed = True
        self._awaited = self._idle = 0


def _mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(right for right, _ in pairs) / len(pairs), sum(wrong for _, wrong in pairs) / len(pairs)
