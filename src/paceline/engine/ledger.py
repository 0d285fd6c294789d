"""What rounds cost and gained, against the cost table: time saved per request, corrected costs, a warning when
speculation loses. It is told of every round that is read; it decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.costs import CostTable
from ..core.round import Outcome, RowResult
from ..core.row import Row
from ..core.stats import EngineStats
from .cost_correction import CostCorrection, Price, PriceList, RoundShape
from .losing import DraftRound, LosingWatch

_LOG = logging.getLogger("paceline.engine")
#: Contexts are priced in buckets of this many tokens.
_BUCKET = 64


@dataclass(frozen=True)
class ReadRound:
    """A round as it was read and delivered, entries in the order of its rows. ``contexts``: inputs in each row's state
    before it.

    ``seconds``: from its launch to its read, delivery left out; for a round launched ahead from the read of the round
    before it; ``None`` where that is not known or something else (a prefill) ran in between.
    """

    rows: Sequence[Row]
    results: Sequence[RowResult]
    outcomes: Sequence[Outcome]
    contexts: Sequence[int]
    seconds: float | None = None

    def shape(self) -> RoundShape:
        """What the round's cost is looked up by. The context is the mean over the rows, to the middle of its bucket."""
        drafted = [len(result.proposals) for result in self.results if result.source == "draft"]
        return RoundShape(
            rows=len(self.results),
            flat=sum(1 + len(result.proposals) for result in self.results),
            context=sum(self.contexts) // (len(self.contexts) * _BUCKET) * _BUCKET + _BUCKET // 2,
            draft_rows=len(drafted),
            depth=max(drafted, default=0),
        )


class RoundLedger:
    """Keeps the figures of rounds. ``costs`` is the table as last corrected."""

    def __init__(self, costs: CostTable, stats: EngineStats, watch: LosingWatch | None = None) -> None:
        self.costs = costs
        self._prices = PriceList(costs)
        self._stats = stats
        self._correction = CostCorrection(costs)
        self._watch = LosingWatch() if watch is None else watch

    def read(self, found: ReadRound) -> CostTable | None:
        """Account for a delivered round. Returns corrected costs when they have moved enough to matter."""
        if not found.results:
            return None
        shape = found.shape()
        price = self._prices.of(shape)
        self._count_saved(found, price)
        if shape.draft_rows:
            self._watch_loss(found, shape, price)
        if found.seconds is None:
            return None
        self._correction.observe_round(shape, found.seconds)
        corrected = self._correction.corrected()
        if corrected is not None:
            self.costs, self._prices = corrected, PriceList(corrected)
            self._stats.cost_factors = {str(kind): factor for kind, factor in self._correction.factors.items()}
        return corrected

    def _count_saved(self, found: ReadRound, price: Price) -> None:
        """Each row is charged the whole round and credited a plain round per token, as its caller waits for both."""
        for row, result, outcome in zip(found.rows, found.results, found.outcomes, strict=True):
            saved = (delivered(result, outcome) * price.plain - price.whole) * 1e3
            row.spec.time_saved_ms = (row.spec.time_saved_ms or 0.0) + saved
            self._stats.time_saved_ms += saved

    def _watch_loss(self, found: ReadRound, shape: RoundShape, price: Price) -> None:
        drafted = [result for result in found.results if result.source == "draft"]
        report = self._watch.observe(
            DraftRound(
                rows=shape.rows,
                tokens=sum(map(delivered, found.results, found.outcomes)),
                drafted=sum(len(result.proposals) for result in drafted),
                accepted=sum(result.accepted for result in drafted),
                plain=price.plain,
                verify=price.verify,
                draft=price.draft,
                seconds=found.seconds,
            )
        )
        self._stats.losing_stretches = self._watch.losing
        self._stats.losing_reason = self._watch.reason
        if report is not None:
            _LOG.warning("%s", report)


def delivered(result: RowResult, outcome: Outcome) -> int:
    """Tokens a round gave its row, an ending EOS included."""
    ended = result.saw_eos and outcome.kind == "stop" and not outcome.halted
    return outcome.taken + ended
