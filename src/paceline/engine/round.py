"""One round: draft, verify, accept; delivery and commit follow in the group (spec 7).

Every mode gives the same results: host-first walks the draws in Python; a device round decides acceptance and
advances the row tables with tensors, then reads one small result tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.acceptance import Acceptance
from ..core.batch import RoundBatch, Window
from ..core.round import RowResult, Source
from ..core.row import Row
from .device_columns import accept_round
from .device_round import unpack
from .drafting import GuardedDrafter
from .draws import RowSampler
from .grammars import RowGrammars
from .phases import NULL_CLOCK, NullClock
from .planning import RoundPlan
from .scores import add_logprobs, wants_logprobs
from .state import EngineParts, indices_of

#: Draws [N] of flat windows and which of them are not finite.
Drawing = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class VerifiedRound:
    """What one round found for the rows of its ``plan``. ``reads`` counts device reads. ``window`` is what the drafter
    commits from (``None`` = it has nothing to commit: it did so on the device, or goes by the text). ``seconds`` from
    its start to its read, or since the read of the round before it; ``None`` = other work ran in between."""

    plan: RoundPlan
    results: list[RowResult]
    on_device: bool
    reads: int
    batch: RoundBatch | None = None
    window: Window | None = None
    seconds: float | None = None


class RoundRunner:
    """Runs rounds for one group. Holds no row state: rows live in the tables and in the host mirror."""

    def __init__(
        self,
        parts: EngineParts,
        drafter: GuardedDrafter,
        sampler: RowSampler,
        grammars: RowGrammars,
        clock: NullClock = NULL_CLOCK,
    ) -> None:
        self.clock = clock
        self._parts = parts
        self._drafter = drafter
        self._sampler = sampler
        self._grammars = grammars

    def run(self, plan: RoundPlan) -> VerifiedRound:
        """Draft what the plan asks for, verify all windows in one forward, accept. Delivers nothing."""
        rows, tables, clock = plan.rows, self._parts.tables, self.clock
        clock.start(rows)
        indices = torch.tensor(indices_of(rows), dtype=torch.int64, device=tables.device)
        batch = RoundBatch(rows, indices, plan.depths)
        drafted = self._drafter.draft(batch)
        plan.matches = [drafted.matches[i] or match for i, match in enumerate(plan.matches)]
        proposed = [given or tokens for given, tokens in zip(plan.given, drafted.tokens, strict=True)]
        proposals, masks = self._grammars.constrain(rows, proposed, plan.widths)
        plan.forced.update(
            row.index for row, kept, asked in zip(rows, proposals, proposed, strict=True) if kept != asked[: len(kept)]
        )
        clock.mark("draft")
        window, logits = self._verify(rows, proposals)
        clock.mark("verify")
        draws = self._sampler.draw_window(logits, rows, proposals, masks)
        tokens = self._forced(batch, proposals, draws.tokens)
        on_device = self._parts.device_round
        accept = self._accept_on_device if on_device else self._accept_on_host
        results = accept(plan, batch, proposals, (tokens, draws.bad))
        results = self._grammars.advance(rows, results, masks)
        if wants_logprobs(rows):
            results = add_logprobs(rows, results, window.batch.query_lens, draws.scores)
        clock.mark("sample")
        return VerifiedRound(plan, results, on_device, 1, batch, window)

    def _forced(self, batch: RoundBatch, proposals: Sequence[list[int]], tokens: torch.Tensor) -> torch.Tensor:
        """Benchmarks only: draws [N] that accept by coin."""
        if self._parts.forced is None:
            return tokens
        tables, lengths, guesses = self._parts.tables, *_padded(proposals, tokens.device)
        width = guesses.shape[1] + 1
        draws = _rectangle(tokens, lengths + 1, width, fill=-1)
        key = (tables.seed[batch.indices], tables.step[batch.indices])
        inside = torch.arange(width, device=tokens.device) <= lengths[:, None]
        return self._parts.forced.apply(draws, guesses, lengths, key)[inside]

    def _verify(self, rows: Sequence[Row], proposals: Sequence[list[int]]) -> tuple[Window, torch.Tensor]:
        """One target forward over all windows: each row's pending token, then its proposals. Logits [N, V]."""
        target = self._parts.target
        forward_batch = self._parts.tables.forward_batch(
            indices_of(rows),
            [[row.pending, *proposal] for row, proposal in zip(rows, proposals, strict=True)],
            [row.length for row in rows],
            [row.position_limit for row in rows],
        )
        result = target.forward(forward_batch, self._drafter.taps)
        return Window(forward_batch, result.for_drafter), target.logits(result.hidden)

    def _accept_on_host(
        self, plan: RoundPlan, batch: RoundBatch, proposals: Sequence[list[int]], drawing: Drawing
    ) -> list[RowResult]:
        """Walk each row's draws (spec 8.1); the row tables follow when the burst is delivered."""
        drawn, broken = (flat.tolist() for flat in drawing)
        results: list[RowResult] = []
        start = 0
        for row, source, proposal in zip(plan.rows, plan.sources, proposals, strict=True):
            end = start + len(proposal) + 1
            results.append(_walk(row, proposal, source, (drawn[start:end], broken[start:end])))
            start = end
        return results

    def _accept_on_device(
        self, plan: RoundPlan, batch: RoundBatch, proposals: Sequence[list[int]], drawing: Drawing
    ) -> list[RowResult]:
        """Acceptance and table advance as tensor operations (spec 8.4), then one read."""
        tables, index, (tokens, bad) = self._parts.tables, batch.indices, drawing
        lengths, guesses = _padded(proposals, tokens.device)
        width = guesses.shape[1] + 1
        draws = _rectangle(tokens, lengths + 1, width, fill=-1)
        broken = _rectangle(bad, lengths + 1, width, fill=0).to(torch.bool)
        figures = accept_round(tables, index, draws, guesses, lengths, broken).figures.tolist()
        return [
            unpack(row, numbers, width - 1, source)
            for row, source, numbers in zip(plan.rows, plan.sources, figures, strict=True)
        ]


def _padded(proposals: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths [B] and proposals [B, K] int64, -1 past each length."""
    width = max(map(len, proposals))
    padded = [[*proposal, *[-1] * (width - len(proposal))] for proposal in proposals]
    lengths = torch.tensor([len(proposal) for proposal in proposals], dtype=torch.int64, device=device)
    return lengths, torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(proposals), width)


def _walk(
    row: Row, proposal: Sequence[int], source: Source, drawing: tuple[Sequence[int], Sequence[bool]]
) -> RowResult:
    """Feed a row's draws to its acceptance; a non-finite position before its end makes the whole row ``bad``."""
    source = source if proposal else "plain"
    acceptance = Acceptance(proposal, row.remaining, frozenset(row.request.eos_ids))
    for token, is_bad in zip(*drawing, strict=True):
        if is_bad:
            return RowResult(tuple(proposal), (), 0, bad=True, source=source)
        acceptance.accept(token)
        if acceptance.done:
            break
    return RowResult.of(acceptance, source)


def _rectangle(flat: torch.Tensor, lengths: torch.Tensor, width: int, fill: int) -> torch.Tensor:
    """Flat ragged rows [N] as [B, width] int64, ``fill`` past each row's length."""
    out = torch.full((len(lengths), width), fill, dtype=torch.int64, device=flat.device)
    inside = torch.arange(width, device=flat.device)[None, :] < lengths[:, None]
    out[inside] = flat.to(torch.int64)
    return out
