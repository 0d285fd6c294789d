"""A group's preparation: rows from admission through prefill and first token to the join (spec 4 and 5)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..core.batch import ForwardResult
from ..core.errors import Cancelled, RowFailed
from ..core.ports import DRAFTER, CachedPrefix
from ..core.request import Request
from ..core.round import Outcome, RowResult
from ..core.row import Row
from ..core.transaction import DamagedState, apply_state_changes
from ..sampling.logprobs import PromptLogprobs
from .delivery import deliver
from .membership import MembershipJoin, TargetJoin
from .preemption import PreemptedRow, ReplaySpan, restore_state
from .prefill import PrefillEngine, PrefillEntry
from .prefill_plan import PrefillSpan
from .scores import add_logprobs, wants_logprobs
from .state import PrefillStep, RowState, indices_of
from .statistics import count_prefill

if TYPE_CHECKING:
    from .group import SpeculativeGroup

_LOG = logging.getLogger("paceline.engine")


class Preparation:
    """Owns rows until they join. ``advance`` either joins ready rows or runs one prefill forward, never both."""

    def __init__(self, group: SpeculativeGroup) -> None:
        self._group = group
        self._parts = group.parts
        self._engine = PrefillEngine(self, group.parts.prefill_chunk)
        self._ready: deque[RowState] = deque()

    @property
    def rows(self) -> list[Row]:
        """Rows in prefill, then ready rows (spec 4.18)."""
        return [*self._engine.rows, *(state.row for state in self._ready)]

    @property
    def token_weight(self) -> int:
        ready = sum(state.row.prompt_tokens - state.row.cached_tokens for state in self._ready)
        return self._engine.token_weight + ready

    def admit(self, row: Row) -> None:
        """Take in a new row; if opening it fails nothing of it is kept and the error is raised."""
        self._engine.admit(row)

    def resume(self, preempted: PreemptedRow) -> None:
        """Take in a preempted row: ready at once if its state was kept, else rebuilt by replay (spec 18.3)."""
        row, state = preempted.row, preempted.state
        restore_state(self._parts, preempted)
        try:
            self._group.sampler.open_row(row)
            self._group.grammars.open_row(row)
        except BaseException:
            self._group.release_row(row)
            raise
        self._group.spans.resume(row)
        row.drafting = row.request.draft_cap > 0
        if row.drafting:
            kept = None if preempted.snapshot is None else preempted.attachment
            self._group.drafter.open_row(row, kept)
        if preempted.snapshot is not None:
            self._ready.append(state)
        else:
            span = ReplaySpan(state.plan, state.chunk, row.length)
            self._engine.resume(PrefillEntry(row, state, span, 0, resumes=True))

    def preempt_newest(self) -> Request | PreemptedRow | None:
        """Give back everything of the newest row here; returns what to queue again, ``None`` if there is no row."""
        entry = self._engine.newest
        if entry is not None:
            if entry.resumes:
                self._group.spans.suspend(entry.row)
            self._group.release_row(entry.row)
            self._engine.remove(entry)
            return PreemptedRow(entry.row, entry.state, None) if entry.resumes else entry.row.request
        if not self._ready:
            return None
        preempted = self._group.take_out(self._ready[-1])
        self._ready.pop()
        return preempted

    def advance(self) -> bool:
        """One step of work; true once no row is in prefill and none is ready (spec 4.19)."""
        if self._ready:
            self._join_ready()
            return not self._engine.rows
        return self._engine.advance() and not self._ready

    def close(self, error: BaseException) -> None:
        """Reject what is still in prefill and every ready entry. Idempotent."""
        self._engine.close(error)
        while self._ready:
            self._reject(self._ready.popleft().row, error)

    # -- hooks of the prefill engine ---------------------------------------------------------------------------------

    def open(self, row: Row) -> PrefillEntry:
        """Give the row its index, its blocks and its drafter row; on failure nothing is kept (spec 4.8)."""
        tables, target = self._parts.tables, self._parts.target
        index = tables.acquire_index()
        if index is None:
            raise RowFailed("no row index is free")
        row.index = index
        try:
            prefix = self._adopt(row)
            tables.reserve(index, self._group.first_blocks(row), sliding=False)
            tables.write_row(row)
            self._group.sampler.open_row(row)
            self._group.grammars.open_row(row)
            self._group.planner.open_row(row)
            row.drafting = row.request.draft_cap > 0
            if row.drafting:
                self._group.drafter.open_row(row, None if prefix is None else prefix.attachments.get(DRAFTER))
        except BaseException:
            self._group.release_row(row)
            raise
        request = row.request
        chunk = min(request.prefill_chunk or self._parts.prefill_chunk, self._parts.prefill_chunk)
        span = PrefillSpan.of_prompt(row.prompt_tokens, chunk, tail_split=target.tail_split, cached=row.cached_tokens)
        keeps = self._parts.cache.keeps(request)
        if keeps:
            span = span.kept(row.prompt_tokens, request.checkpoint_at)
        state = RowState(
            row,
            prefix_length=span.end,
            keeps=keeps,
            chunk=span.chunk,
            committed=[] if keeps else None,
            prompt_scores=_prompt_scores(row),
        )
        return PrefillEntry(row, state, span, span.cached)

    def _adopt(self, row: Row) -> CachedPrefix | None:
        """Start the row on the longest cached prefix, if there is one (spec 4.6)."""
        tables, request = self._parts.tables, row.request
        if request.params.prompt_logprobs is not None and (request.family is None or request.family.leads):
            return None  # its report needs the logits of the whole prompt
        prefix = self._parts.cache.acquire(request, request.namespace or "", request.prompt_ids)
        if prefix is not None:
            tables.adopt(row.index, prefix.blocks, prefix.length)
            tables.make_writable(row.index, prefix.length)
            row.cached_tokens = row.length = prefix.length
        return prefix

    def forward(self, work: Sequence[tuple[PrefillEntry, PrefillStep]]) -> ForwardResult:
        """One target forward over the packed steps; the drafter consumes the same chunk (spec 4.11)."""
        self._group.disturb()
        rows = [entry.row for entry, _ in work]
        for entry, step in work:
            self._parts.free_behind_window(entry.row, step.start)
            self._parts.tables.reserve(entry.row.index, step.end)
        batch = self._parts.tables.forward_batch(
            indices_of(rows),
            [entry.row.tokens[step.start : step.end] for entry, step in work],
            [step.start for _, step in work],
            [row.position_limit for row in rows],
        )
        result: ForwardResult = self._parts.target.forward(batch, self._group.drafter.taps)
        self._group.drafter.prefill(rows, batch, result.for_drafter)
        self._score_prompts(work, result)
        return result

    def _score_prompts(self, work: Sequence[tuple[PrefillEntry, PrefillStep]], result: ForwardResult) -> None:
        first = 0
        for entry, step in work:
            count = step.end - step.start
            scores = entry.state.prompt_scores
            if scores is not None and not entry.resumes:
                scores.add_hidden(step.start, result.hidden[first : first + count], self._parts.target.logits)
                entry.row.prompt_logprobs = scores.entries
            first += count

    def save(self, entry: PrefillEntry) -> None:
        """Publish the boundary checkpoint (spec 4.13); a failed publication is contained."""
        self._group.publish_prefix(entry.state, entry.row.request.prompt_ids[: entry.position])

    def complete(self, entries: Sequence[PrefillEntry], result: ForwardResult | None, places: Sequence[int]) -> None:
        """First tokens of rows whose prompt is in state; tail-split rows draw theirs in their first round."""
        drawing = []
        for entry, place in zip(entries, places, strict=True):
            if entry.resumes:
                self._ready.append(entry.state)
            elif _tail_split(entry):
                entry.row.pending = entry.row.request.prompt_ids[-1]
                count_prefill(entry.row.spec, 0)
                self._group.spans.ask(entry.row)
                self._ready.append(entry.state)
            else:
                drawing.append((entry, place))
        if not drawing or result is None:
            return
        rows = [entry.row for entry, _ in drawing]
        try:
            hidden = result.hidden[torch.tensor([place for _, place in drawing], device=result.hidden.device)]
            proposals, masks = self._group.grammars.constrain(rows, [[] for _ in rows], [0] * len(rows))
            draws = self._group.sampler.draw_window(self._parts.target.logits(hidden), rows, proposals, masks)
            results = [
                _first_result(row, token, broken)
                for row, token, broken in zip(rows, draws.tokens.tolist(), draws.bad.tolist(), strict=True)
            ]
            results = self._group.grammars.advance(rows, results, masks)
            if wants_logprobs(rows):
                results = add_logprobs(rows, results, [1] * len(rows), draws.scores)
        except Exception as error:
            for row in rows:
                self._reject(row, error)
            return
        for (entry, _), first in zip(drawing, results, strict=True):
            self._first_token(entry, first)

    def reject(self, entry: PrefillEntry, error: BaseException) -> None:
        self._reject(entry.row, error)

    # -- first token and join ----------------------------------------------------------------------------------------

    def _first_token(self, entry: PrefillEntry, result: RowResult) -> None:
        """Deliver the draw of step 0 (spec 4.15) and queue the row, or end it."""
        row, state = entry.row, entry.state
        outcome = deliver(self._group.host, row, result)
        self._group.stats.generation_tokens += outcome.taken
        row.step = 1
        row.generated = outcome.taken + (1 if outcome.kind == "stop" and result.saw_eos else 0)
        row.tokens.extend(result.emitted[: outcome.taken])
        count_prefill(row.spec, row.generated)
        self._group.spans.delivered(row, result, outcome.taken, outcome.kind == "continue")
        if outcome.kind == "continue":
            row.pending = result.emitted[-1]
            self._group.sampler.observe(row, result.emitted)
            self._ready.append(state)
        else:
            self._end(state, outcome, result)

    def _end(self, state: RowState, outcome: Outcome, result: RowResult) -> None:
        row = state.row
        if state.keeps and outcome.kind in ("stop", "length"):
            self._group.publish_prefix(state, row.request.prompt_ids[: row.length])
        try:
            self._group.release_row(row, clear=result.bad)
        finally:
            self._group.end(row, outcome, result.end_id)

    def _join_ready(self) -> None:
        """Join every ready row, each in its own transaction (spec 5); one that fails costs only itself."""
        while self._ready:
            state = self._ready.popleft()
            row = state.row
            if row.request.abort.aborted:
                self._reject(row, Cancelled(row.request.abort.reason or ""))
                continue
            window = 1 + row.request.draft_cap
            try:
                apply_state_changes(
                    [
                        partial(TargetJoin, self._parts, row, window),
                        partial(self._group.drafter.prepare_join, row),
                        partial(MembershipJoin, self._group.register, state),
                    ]
                )
            except DamagedState as damage:
                self._reject(row, RowFailed(f"joining the batch failed: {damage}"))
                raise
            except Exception as error:
                self._reject(row, error)

    def _reject(self, row: Row, error: BaseException) -> None:
        try:
            self._group.release_row(row)
        except Exception as second:  # the first error stays primary
            _LOG.error("releasing request %s failed: %r", row.request.id, second)
        self._group.host.reject(row, error)


def _first_result(row: Row, token: int, bad: bool) -> RowResult:
    """What the draw of step 0 means for a row: a token, EOS, or nothing if its logits were not finite."""
    saw_eos = token in row.request.eos_ids and not bad
    emitted = () if saw_eos or bad else (token,)
    return RowResult((), emitted, 0, saw_eos, bad=bad, end_id=token if saw_eos else None)


def _prompt_scores(row: Row) -> PromptLogprobs | None:
    """A gatherer of prompt log-probabilities; samples that start on a shared prompt leave it to the first."""
    top = row.request.params.prompt_logprobs
    return None if top is None or row.cached_tokens else PromptLogprobs(row.request.prompt_ids, top)


def _tail_split(entry: PrefillEntry) -> bool:
    return entry.span.end < entry.row.prompt_tokens
