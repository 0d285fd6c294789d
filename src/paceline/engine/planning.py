"""What the rows of the next round propose: spans, what the drafter looks up, how deep it is to draft (spec 6.3 to 6.5).

It chooses and keeps the evidence; it runs no round and changes no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import torch

from ..core.batch import RoundBatch
from ..core.costs import CostTable
from ..core.ports import Evidence, Gate, GateRow
from ..core.round import RowResult, Source
from ..core.row import Row
from ..core.stats import EngineStats
from .drafting import GuardedDrafter, Proposals
from .shadow import ShadowProbes
from .spans import RowSpans
from .state import EngineParts, indices_of

#: Whether a round that was launched and not read names a row; ``None`` = there is no such round.
Unread = Callable[[Row], bool] | None


@dataclass
class RoundPlan:
    """One entry per row. ``depths``: how many proposals to ask the drafter for; ``given``: proposals that the host
    knows already; ``sources``: what they are for the row; ``matches``: length of the match they rest on.

    ``room``: what a row's grammar may propose by force beside it. ``forced``: indices of rows whose proposals turned
    out to be the grammar's: they say nothing about the drafter.
    """

    rows: list[Row]
    depths: list[int]
    given: list[list[int]]
    sources: list[Source]
    matches: list[int]
    room: list[int]
    forced: set[int] = field(default_factory=set)

    @classmethod
    def plain(cls, rows: list[Row], depths: list[int] | None = None) -> RoundPlan:
        """Nothing is given; the drafter is asked for ``depths`` (default: not at all)."""
        none = [0] * len(rows)
        return cls(rows, depths or none, [[] for _ in rows], ["draft"] * len(rows), list(none), list(none))

    @property
    def widths(self) -> list[int]:
        """Most proposals each row may have in its window."""
        lengths = map(len, self.given)
        return [max(each) for each in zip(self.depths, lengths, self.room, strict=True)]

    @property
    def depth(self) -> int:
        """The deepest draft asked for."""
        return max(self.depths, default=0)

    @property
    def span(self) -> int:
        """The most proposals that are given."""
        return max(map(len, self.given), default=0)


@dataclass
class Policy:
    """Who decides: the ``gate`` (``None`` = every row drafts at its cap), the ``shadow`` probes that feed it, the
    ``spans``. ``free``: the drafter looks proposals up at no cost; ``external``: it takes tokens that others proposed,
    which spans need."""

    gate: Gate | None
    spans: RowSpans
    free: bool
    external: bool = True
    shadow: ShadowProbes = field(default_factory=ShadowProbes)


class Planner:
    """Plans rounds of one group and learns from their results."""

    def __init__(self, parts: EngineParts, drafter: GuardedDrafter, policy: Policy, stats: EngineStats) -> None:
        self._parts = parts
        self._drafter = drafter
        self._policy = policy
        self._stats = stats
        self._looks_up = policy.free and not drafter.on_device
        self._watched: dict[int, int] = {}

    def open_row(self, row: Row) -> None:
        """A row was admitted: it may ask for spans."""
        self._policy.spans.open_row(row, self._policy.external)

    def join(self, row: Row) -> None:
        if self._policy.gate is not None:
            self._policy.gate.join(row.index)

    def leave(self, row: Row) -> None:
        """The row is gone: its evidence, probe and span go with it. Idempotent."""
        self._policy.shadow.drop(row.index)
        self._watched.pop(row.index, None)
        if self._policy.gate is not None:
            self._policy.gate.leave(row.index)

    def reset(self) -> None:
        """The group ran empty: what a request is given must not depend on those before it (spec 11.7, case S47)."""
        if self._policy.gate is not None:
            self._policy.gate.reset()

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, rows: list[Row], unread: Unread = None, decided: Mapping[int, int] | None = None) -> RoundPlan:
        """The next round. ``unread``: whether a round in flight names a row (``None`` = nothing is in flight);
        ``decided``: depths by row index that were chosen before the last round was read (default: choose now)."""
        spans, in_flight = self._policy.spans, unread is not None
        started = [not in_flight and spans.started(row) for row in rows]
        caps = [self._cap(row, unread) for row in rows]
        found: Proposals | None = None
        if self._looks_up and not in_flight and any(caps):
            found = self._drafter.draft(self._batch(rows, caps))
            caps = [min(cap, len(tokens)) for cap, tokens in zip(caps, found.tokens, strict=True)]
            started = [
                span and not self._beats_span(row, cap, match, alone=len(rows) == 1)
                for row, span, cap, match in zip(rows, started, caps, found.matches, strict=True)
            ]
        caps = [0 if span else cap for cap, span in zip(caps, started, strict=True)]
        if decided is None:
            depths = self._decide(rows, caps, started, found)
        else:
            depths = [min(cap, decided.get(row.index, 0)) for row, cap in zip(rows, caps, strict=True)]
        plan = RoundPlan.plain(rows, depths)
        plan.room = [self._cap(row, unread) if row.request.grammar is not None else 0 for row in rows]
        if found is not None:
            self._take_found(plan, found)
        for place, row in enumerate(rows):
            if started[place]:
                plan.given[place] = spans.proposals(row, max(depths), alone=len(rows) == 1)
                plan.sources[place] = "span"
        return plan

    def _cap(self, row: Row, unread: Unread = None) -> int:
        """Most proposals that could be of use to the row (spec 6.3): an unread round draws at least one token of it."""
        if not self._drafter.has(row):
            return 0
        drawn = unread is not None and unread(row)
        return max(0, min(row.request.draft_cap, row.remaining - drawn))

    def _batch(self, rows: Sequence[Row], depths: Sequence[int]) -> RoundBatch:
        """For drafters that the host asks: their indices stay there too, an upload would wait for the device."""
        return RoundBatch(rows, torch.tensor(indices_of(rows), dtype=torch.int64), depths)

    def _decide(
        self, rows: Sequence[Row], caps: Sequence[int], started: Sequence[bool], found: Proposals | None
    ) -> list[int]:
        gate = self._policy.gate
        if gate is None or not any(caps):
            return list(caps)
        matches = found.matches if found is not None else [self._watched.get(row.index, 0) for row in rows]
        depths = gate.next(
            [
                GateRow(row.index, cap, row.remaining, row.length, match, spanned)
                for row, cap, match, spanned in zip(rows, caps, matches, started, strict=True)
            ]
        )
        self._stats.probes += gate.probing
        return depths

    def _beats_span(self, row: Row, count: int, match: int, *, alone: bool) -> bool:
        """Whether ``count`` proposals that were looked up are expected to bring more than the row's started span."""
        gate = self._policy.gate
        if gate is None or not count:
            return False
        expected: float = sum(accumulate(gate.rates(row.index, match)[:count], mul))
        return expected > self._policy.spans.expected(row, count, alone=alone)

    def _take_found(self, plan: RoundPlan, found: Proposals) -> None:
        """Looked-up proposals within the depths; what is left out of a round is watched at no cost (spec 11.8)."""
        for place, (row, tokens, match) in enumerate(zip(plan.rows, found.tokens, found.matches, strict=True)):
            plan.matches[place] = match
            plan.given[place] = tokens[: plan.depths[place]]
            if tokens and not plan.given[place]:
                self._watch(row, tokens, match)
        plan.depths = [0] * len(plan.rows)

    def correct(self, costs: CostTable) -> None:
        """Choose by these costs from now on."""
        if self._policy.gate is not None:
            self._policy.gate.correct(costs)

    # -- evidence -----------------------------------------------------------------------------------------------------

    def learn(self, plan: RoundPlan, results: Mapping[int, RowResult]) -> None:
        """Evidence of a delivered round: its drafter proposals (spec 11.3), and probes that it settled (11.9).

        ``results``: row index -> result, of the rows that the round was delivered for.
        """
        gate = self._policy.gate
        if gate is None:
            return
        entries: list[Evidence] = []
        for row, match in zip(plan.rows, plan.matches, strict=True):
            result = results.get(row.index)
            if result is None:
                continue
            if result.source == "draft" and row.index not in plan.forced:
                entries.extend(self._policy.shadow.settle([row.index]))
                tested = len(result.proposals) if result.correction is not None else result.accepted
                entries.append(Evidence(row.index, tested, result.accepted, match))
            else:
                settled = self._policy.shadow.delivered(row.index, result.emitted, result.saw_eos)
                entries.extend([] if settled is None else [settled])
        if entries:
            gate.observe(entries)

    def watch_behind(self, rows: Sequence[Row]) -> None:
        """While plain rounds run ahead: look up what would be proposed after what has been read, at no cost."""
        if self._policy.gate is None or not self._looks_up:
            return
        caps = [0 if self._policy.shadow.has(row.index) else self._cap(row) for row in rows]
        idle = [row for row, cap in zip(rows, caps, strict=True) if cap]
        if idle:
            found = self._drafter.draft(self._batch(idle, [cap for cap in caps if cap]))
            for row, tokens, match in zip(idle, found.tokens, found.matches, strict=True):
                if tokens:
                    self._watch(row, tokens, match)

    def preview(self, plan: RoundPlan) -> RoundPlan:
        """Turn a probe into a plain round that is compared with what the drafter would have proposed, if the drafter
        can tell without changing anything (spec 6.4)."""
        gate = self._policy.gate
        if gate is None or not gate.probing or self._looks_up or not plan.depth or plan.span:
            return plan
        if self._parts.tables.device.type != "cpu":
            return plan  # there a preview would cost a read of its own
        found = self._drafter.preview(self._batch(plan.rows, plan.depths))
        if found is None:
            return plan
        for row, tokens, match in zip(plan.rows, found.tokens, found.matches, strict=True):
            if tokens:
                self._watch(row, tokens, match)
        return RoundPlan.plain(plan.rows)

    def _watch(self, row: Row, tokens: Sequence[int], match: int) -> None:
        if self._policy.gate is not None:
            self._policy.shadow.start([row.index], [tokens], [match])
            self._watched[row.index] = match
