"""What a read round means for its rows: delivery, commit, retirement (spec 9), in this order, row after row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.round import Outcome, RowResult
from ..core.row import Row
from .delivery import deliver, settle
from .ledger import ReadRound
from .round import VerifiedRound
from .statistics import count_group_round

if TYPE_CHECKING:
    from .group import SpeculativeGroup


class Settlement:
    """Settles rounds of one group. Rows that left since a round was launched are passed over: their part is dropped."""

    def __init__(self, group: SpeculativeGroup) -> None:
        self._group = group
        self._parts = group.parts

    def settle(self, verified: VerifiedRound) -> None:
        """Deliver the round to its rows, commit what they keep, release those that ended."""
        group = self._group
        pairs = list(zip(verified.plan.rows, verified.results, strict=True))
        kept = [(row, result) for row, result in pairs if group.is_member(row)]
        group.stats.dropped_positions += sum(
            1 + len(result.proposals) for row, result in pairs if not group.is_member(row)
        )
        rows, results = [row for row, _ in kept], [result for _, result in kept]
        count_group_round(group.stats, results, on_device=verified.on_device, reads=verified.reads)
        contexts = [row.length for row in rows]
        outcomes = [self._deliver(row, result) for row, result in kept]
        group.clock.resume()
        group.planner.learn(verified.plan, {row.index: result for row, result in kept})
        if group.ledger is not None:
            seconds = verified.seconds if len(kept) == len(pairs) else None
            costs = group.ledger.read(ReadRound(rows, results, outcomes, contexts, seconds))
            if costs is not None:
                group.planner.correct(costs)
        self._commit(verified, rows, outcomes)
        if verified.window is not None:
            group.clock.mark("commit")
        self._retire(rows, results, outcomes)

    def _deliver(self, row: Row, result: RowResult) -> Outcome:
        """Hand a row its burst and settle its host mirror."""
        group = self._group
        outcome = deliver(group.host, row, result)
        group.stats.generation_tokens += outcome.taken
        settle(row, group.state_of(row), result, outcome)
        going = outcome.kind == "continue"
        group.spans.delivered(row, result, outcome.taken, going)
        if going:
            group.sampler.observe(row, result.emitted)
        return outcome

    def _commit(self, verified: VerifiedRound, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        """Keep 1 + retained inputs of every window, target first, then the drafter (spec 7.7). For paged KV the
        target's commit is the row's length, which :func:`settle` has set; the tables follow it."""
        tables = self._parts.tables
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome.kind != "continue":
                tables.stop(row.index)
                tables.trim(row.index, row.length)
            elif not verified.on_device:
                tables.write_mirror(row)
        if verified.window is not None and verified.batch is not None:
            self._group.drafter.commit_round(
                verified.batch,
                verified.window,
                [outcome.retained for outcome in outcomes],
                [result.source == "span" for result in verified.results],
            )

    def _retire(self, rows: Sequence[Row], results: Sequence[RowResult], outcomes: Sequence[Outcome]) -> None:
        """Checkpoint, release and finish the rows that ended; the others go on (spec 9.4, step 6)."""
        ended = [i for i, outcome in enumerate(outcomes) if outcome.kind != "continue"]
        if not ended:
            return
        group = self._group
        for i in ended:
            row, state = rows[i], group.state_of(rows[i])
            if outcomes[i].kind in ("stop", "length") and state.committed is not None and not row.request.abort.aborted:
                tokens = [*row.request.prompt_ids[: state.prefix_length], *state.committed]
                group.publish_prefix(state, tokens)
        gone = {id(rows[i]) for i in ended}
        try:
            group.filter_rows(
                [id(row) not in gone for row in group.host.rows],
                {rows[i].index for i in ended if results[i].bad},
            )
        finally:  # whatever a release did, these requests have ended
            for i in ended:
                group.end(rows[i], outcomes[i], results[i].end_id)
