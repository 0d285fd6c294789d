"""The adaptive gate: chooses each row's depth from its evidence and the costs of a round (spec 11).

Host only and deterministic: it reads no clock, draws nothing, and knows neither tokens nor drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.costs import CostTable
from ..core.ports import Evidence, GateRow
from .decision import CONTEXT_BUCKET, Choice, RoundCosts, choose
from .evidence import Counters, EvidenceSettings, Slots, tally


@dataclass(frozen=True)
class GateSettings:
    margin: float = 1.03
    probe_after: int = 16
    probe_at_most: int = 256
    pace_decay: float = 0.98
    long_run: bool = True
    restore: float = 1.0
    evidence: EvidenceSettings = field(default_factory=EvidenceSettings)


class _RowState:
    def __init__(self, counters: Counters, interval: int) -> None:
        self.counters = counters
        self.interval = interval
        self.hungry = 0


class AdaptiveGate:
    def __init__(self, costs: CostTable, depth: int, settings: GateSettings | None = None) -> None:
        self._settings = settings or GateSettings()
        self._slots = Slots(depth, self._settings.evidence)
        self._costs = costs
        self._rounds: dict[tuple[int, int], RoundCosts] = {}
        self.reset()

    def reset(self) -> None:
        self._group = Counters(self._slots, self._settings.evidence)
        self._rows: dict[int, _RowState] = {}
        self._interval = self._settings.probe_after
        self._idle = 0
        self._waiting = 0
        self._probing = False
        self._observed = False
        self._observed_run = 0
        self._pace_tokens = 1.0
        self._pace_cost = 1.0

    @property
    def probing(self) -> bool:
        return self._probing

    @property
    def pace(self):
        return max(1.0, self._pace_tokens / self._pace_cost)

    def join(self, index: int) -> None:
        counters = Counters(self._slots, self._settings.evidence)
        counters.start_from(self._group)
        self._rows[index] = _RowState(counters, self._settings.probe_after)

    def leave(self, index: int) -> None:
        self._rows.pop(index, None)

    def correct(self, costs: CostTable) -> None:
        self._costs = costs
        self._rounds.clear()

    def next(self, rows: Sequence[GateRow]) -> list[int]:
        self._probing = False
        self._count_observed()
        caps = [0 if row.spanned else row.cap for row in rows]
        if not any(caps):
            return [0] * len(rows)
        if self._waiting:
            self._waiting -= 1
            return [0] * len(rows)
        choice = self._decide(rows, caps)
        if any(choice.depths):
            self._idle = 0
            return choice.depths
        self._idle += 1
        if self._idle >= self._interval:
            return self._probe(rows, caps)
        return choice.depths

    def _count_observed(self):
        self._observed_run = self._observed_run + 1 if self._observed else 0
        self._observed = False
        if self._observed_run >= self._settings.probe_after:
            self._interval = self._settings.probe_after

    def _round_costs(self, rows) -> RoundCosts:
        context = sum(row.context for row in rows) // len(rows)
        key = (len(rows), context // CONTEXT_BUCKET)
        if key not in self._rounds:
            if len(self._rounds) > 256:
                self._rounds.clear()
            self._rounds[key] = RoundCosts(self._costs, len(rows), key[1] * CONTEXT_BUCKET + CONTEXT_BUCKET // 2)
        return self._rounds[key]

    def _decide(self, rows, caps) -> Choice:
        costs = self._round_costs(rows)
        chances = [
            self._rows[row.index].counters.chances(row.match, min(cap, row.remaining - 1)) if cap > 0 else []
            for row, cap in zip(rows, caps, strict=True)
        ]
        plain = len(rows) / costs.plain
        if self._settings.long_run:
            choice = choose(chances, costs, plain * self.pace)
        else:
            price = plain
            while True:
                choice = choose(chances, costs, price)
                if choice.tokens / choice.cost <= price:
                    break
                price = choice.tokens / choice.cost
        if any(choice.depths) and choice.tokens / choice.cost < self._settings.margin * plain:
            choice = Choice([0] * len(rows), float(len(rows)), costs.plain)
        k = self._settings.pace_decay
        self._pace_tokens = self._pace_tokens * k + choice.tokens / len(rows)
        self._pace_cost = self._pace_cost * k + choice.cost / costs.plain
        return choice

    def _probe(self, rows, caps):
        costs = self._round_costs(rows)
        most = 0
        for depth in range(1, max(caps) + 1):
            ds = [min(c, depth) for c in caps]
            t = len(rows) + sum(ds)
            c = costs.reach(sum(ds))[sum(ds)] + costs.drafts(depth)[sum(d > 0 for d in ds)]
            if t / c >= self._settings.margin * len(rows) / costs.plain:
                most = depth
        self._idle = 0
        if most == 0:
            return [0] * len(rows)
        for row in rows:
            c = Counters(self._slots, self._settings.evidence)
            if self._settings.restore < 1.0:
                c.start_from(self._rows[row.index].counters)
                c.scale(self._settings.restore)
            self._rows[row.index].counters = c
        self._waiting = self._interval
        self._interval = min(self._settings.probe_at_most, 2 * self._interval)
        self._probing = True
        choice = self._decide(rows, caps)
        return [min(c, max(1, min(most, d))) if c > 0 else 0 for c, d in zip(caps, choice.depths, strict=True)]

    def observe(self, entries: Sequence[Evidence]) -> None:
        if not entries:
            return
        self._observed = True
        self._waiting = 0
        self._idle = 0
        mean: dict[int, list[float]] = {}
        for entry in entries:
            counters = self._rows[entry.index].counters
            found = tally(entry, self._slots)
            for slot, (right, wrong) in found.items():
                counters.add(slot, right, wrong)
                s = mean.setdefault(slot, [0.0, 0.0, 0])
                s[0] += right; s[1] += wrong; s[2] += 1
            counters.settle(found)
        for slot, (right, wrong, n) in mean.items():
            self._group.add(slot, right / n, wrong / n)
        self._group.settle(mean)
