"""Replays acceptance traces against a cost table: fixed depths, the adaptive gate, and an oracle. No model, no torch.

Speed-ups are seconds of plain decoding over seconds of the policy, both by the cost table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.costs import CostTable
from ..core.ports import Evidence, Gate, GateRow
from ..engine.shadow import ShadowProbes
from ..gate.adaptive import CONTEXT_BUCKET
from ..gate.decision import RoundCosts, choose
from .trace import Trace

#: Stands in a proposal for a token that the text does not have.
_WRONG = -1


@dataclass
class Play:
    """One request under way: ``place`` tokens of its output are out. ``index`` names its row."""

    trace: Trace
    index: int
    place: int = 1

    @property
    def remaining(self) -> int:
        return self.trace.tokens - self.place

    @property
    def proposed(self) -> int:
        return self.trace.proposed[self.place - 1]

    @property
    def accepted(self) -> int:
        return self.trace.accepted[self.place - 1]

    @property
    def match(self) -> int:
        return self.trace.match[self.place - 1]

    @property
    def cap(self) -> int:
        return min(self.proposed, self.remaining)

    @property
    def context(self) -> int:
        return self.trace.prompt_tokens + self.place

    def proposals(self) -> list[int]:
        """What the drafter proposes here. A token of the text is named by its place."""
        right = range(self.place, self.place + self.accepted)
        return [*right, *[_WRONG] * (self.proposed - self.accepted)]

    def gate_row(self) -> GateRow:
        return GateRow(self.index, self.cap, self.remaining, self.context, self.match)


class CostBook:
    """Costs of the rounds of a replay; contexts are taken together in buckets, as the gate does."""

    def __init__(self, costs: CostTable) -> None:
        self.table = costs
        self._rounds: dict[tuple[int, int], RoundCosts] = {}

    def of(self, plays: Sequence[Play]) -> RoundCosts:
        bucket = sum(play.context for play in plays) // len(plays) // CONTEXT_BUCKET
        key = (len(plays), bucket)
        if key not in self._rounds:
            middle = bucket * CONTEXT_BUCKET + CONTEXT_BUCKET // 2
            self._rounds[key] = RoundCosts(self.table, len(plays), middle)
        return self._rounds[key]


class Policy(Protocol):
    """Chooses depths and may learn from what a round showed."""

    def join(self, play: Play) -> None: ...

    def leave(self, play: Play) -> None: ...

    def depths(self, plays: Sequence[Play]) -> list[int]: ...

    def draft_depth(self, depths: Sequence[int]) -> int:
        """How deep the drafter ran for a round of these depths."""
        ...

    def learn(self, plays: Sequence[Play], depths: Sequence[int], kept: Sequence[int]) -> None:
        """``plays`` as they were before the round, and how many proposals each kept."""
        ...


class FixedDepth:
    """Every row drafts at one depth, or as deep as it can."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def join(self, play: Play) -> None: ...

    def leave(self, play: Play) -> None: ...

    def depths(self, plays: Sequence[Play]) -> list[int]:
        return [min(self._depth, play.cap) for play in plays]

    def draft_depth(self, depths: Sequence[int]) -> int:
        return max(depths, default=0)

    def learn(self, plays: Sequence[Play], depths: Sequence[int], kept: Sequence[int]) -> None: ...


class Oracle(FixedDepth):
    """Knows how many proposals are right and takes the depths of most tokens per second, round by round."""

    def __init__(self, costs: CostBook) -> None:
        super().__init__(0)
        self._costs = costs

    def depths(self, plays: Sequence[Play]) -> list[int]:
        certain = [[1.0] * min(play.accepted, play.remaining - 1) for play in plays]
        return choose(certain, self._costs.of(plays)).depths


class Gated:
    """The gate as the engine uses it: proposals that are not verified are compared with what follows."""

    def __init__(self, gate: Gate, free: bool) -> None:
        self._gate, self._free = gate, free
        self._probes = ShadowProbes()
        self._previewed = 0

    def join(self, play: Play) -> None:
        self._gate.join(play.index)

    def leave(self, play: Play) -> None:
        self._probes.drop(play.index)
        self._gate.leave(play.index)

    def depths(self, plays: Sequence[Play]) -> list[int]:
        depths = self._gate.next([play.gate_row() for play in plays])
        self._previewed = 0
        if self._gate.probing and not self._free and not self._probes.outstanding:
            self._previewed = max(depths)
            for play in plays:
                self._probes.start([play.index], [play.proposals()[: min(self._previewed, play.cap)]])
            depths = [0] * len(plays)
        return depths

    def draft_depth(self, depths: Sequence[int]) -> int:
        return max(self._previewed, *depths)

    def learn(self, plays: Sequence[Play], depths: Sequence[int], kept: Sequence[int]) -> None:
        entries: list[Evidence] = self._probes.settle(
            [play.index for play, depth in zip(plays, depths, strict=True) if depth]
        )
        for play, depth, count in zip(plays, depths, kept, strict=True):
            if depth:
                tested = depth if count < play.remaining else count
                entries.append(Evidence(play.index, tested, count, play.match))
                continue
            if self._free:
                self._probes.start([play.index], [play.proposals()], [play.match])
            found = self._probes.delivered(play.index, [play.place])
            if found is not None:
                entries.append(found)
        if entries:
            self._gate.observe(entries)


@dataclass(frozen=True)
class Run:
    """What one policy did: ``seconds`` by the cost table, ``proposed`` and ``accepted`` tokens of its windows."""

    tokens: int
    rounds: int
    seconds: float
    proposed: int
    accepted: int


def replay(traces: Sequence[Trace], costs: CostBook, policy: Policy, batch: int) -> Run:
    """Decode the traces in order, ``batch`` at a time; a request that ends makes room for the next."""
    waiting = iter(traces)
    plays: list[Play] = []
    free_rows = list(range(batch))
    tokens = rounds = proposed = accepted = 0
    seconds = 0.0
    while True:
        _admit(waiting, plays, free_rows, policy)
        if not plays:
            return Run(tokens, rounds, seconds, proposed, accepted)
        depths = policy.depths(plays)
        seconds += _cost(costs, plays, depths, policy.draft_depth(depths))
        kept = [min(depth, play.accepted) for play, depth in zip(plays, depths, strict=True)]
        policy.learn(plays, depths, kept)
        rounds, proposed, accepted = rounds + 1, proposed + sum(depths), accepted + sum(kept)
        for play, count in zip(list(plays), kept, strict=True):
            step = min(count + 1, play.remaining)
            tokens += step
            play.place += step
            if not play.remaining:
                plays.remove(play)
                free_rows.append(play.index)
                policy.leave(play)


def _admit(waiting: Iterator[Trace], plays: list[Play], free_rows: list[int], policy: Policy) -> None:
    while free_rows:
        trace = next((trace for trace in waiting if trace.tokens > 1), None)
        if trace is None:
            return
        play = Play(trace, free_rows.pop())
        plays.append(play)
        policy.join(play)


def _cost(costs: CostBook, plays: Sequence[Play], depths: Sequence[int], draft_depth: int) -> float:
    """A round's seconds. A preview, which proposes nothing, is drafted for every row."""
    found, proposals = costs.of(plays), sum(depths)
    drafting = sum(depth > 0 for depth in depths) or len(plays)
    draft = found.drafts(draft_depth)[drafting] if draft_depth else 0.0
    return found.verify(proposals)[proposals] + draft
