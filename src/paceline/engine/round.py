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
from ..core.request import DEVICE_EOS_IDS
from ..core.round import RowResult, Source
from ..core.row import Row
from ..sampling.accept import accept_window
from .device_columns import advance_columns
from .drafting import GuardedDrafter
from .draws import RowSampler
from .grammars import RowGrammars
from .scores import add_logprobs, wants_logprobs
from .state import EngineParts, indices_of


@dataclass(frozen=True)
class VerifiedRound:
    """What one round computed. ``window`` is what target and drafter commit from; ``reads`` counts device reads."""

    batch: RoundBatch
    window: Window
    results: list[RowResult]
    on_device: bool
    reads: int


class RoundRunner:
    """Runs rounds for one group. Holds no row state: rows live in the tables and in the host mirror."""

    def __init__(self, parts: EngineParts, drafter: GuardedDrafter, sampler: RowSampler, grammars: RowGrammars) -> None:
        self._parts = parts
        self._drafter = drafter
        self._sampler = sampler
        self._grammars = grammars

    def run(self, rows: Sequence[Row], depths: Sequence[int]) -> VerifiedRound:
        """Draft at most ``depths`` tokens per row, verify all windows in one forward, accept. Delivers nothing."""
        tables = self._parts.tables
        indices = torch.tensor(indices_of(rows), dtype=torch.int64, device=tables.device)
        batch = RoundBatch(rows, indices, depths)
        proposals, masks = self._grammars.constrain(rows, self._drafter.draft(batch), depths)
        window, logits = self._verify(rows, proposals)
        draws = self._sampler.draw_window(logits, rows, proposals, masks)
        on_device = self._parts.device_round
        accept = self._accept_on_device if on_device else self._accept_on_host
        results = self._grammars.advance(rows, accept(batch, proposals, draws.tokens, draws.bad), masks)
        if wants_logprobs(rows):
            results = add_logprobs(rows, results, window.batch.query_lens, draws.scores)
        return VerifiedRound(batch, window, results, on_device, reads=1)

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
        self, batch: RoundBatch, proposals: Sequence[list[int]], tokens: torch.Tensor, bad: torch.Tensor
    ) -> list[RowResult]:
        """Walk each row's draws (spec 8.1); the row tables follow when the burst is delivered."""
        drawn, broken = tokens.tolist(), bad.tolist()
        results: list[RowResult] = []
        start = 0
        for row, proposal in zip(batch.rows, proposals, strict=True):
            end = start + len(proposal) + 1
            results.append(_walk(row, proposal, drawn[start:end], broken[start:end]))
            start = end
        return results

    def _accept_on_device(
        self, batch: RoundBatch, proposals: Sequence[list[int]], tokens: torch.Tensor, bad: torch.Tensor
    ) -> list[RowResult]:
        """Acceptance and table advance as tensor operations (spec 8.4), then one read."""
        tables = self._parts.tables
        lengths = torch.tensor([len(proposal) for proposal in proposals], dtype=torch.int64, device=tokens.device)
        width = max(len(proposal) for proposal in proposals) + 1
        draws = _rectangle(tokens, lengths + 1, width, fill=-1)
        padded = [proposal + [-1] * (width - 1 - len(proposal)) for proposal in proposals]
        guesses = torch.tensor(padded, dtype=torch.int64, device=tokens.device).reshape(len(proposals), width - 1)
        index = batch.indices
        accepted = accept_window(
            draws=draws,
            proposals=guesses,
            lengths=lengths,
            eos_ids=tables.eos_ids[index],
            remaining=tables.remaining[index],
            live=tables.live[index],
            bad=_rectangle(bad, lengths + 1, width, fill=0).to(torch.bool),
        )
        advance_columns(tables, index, draws, accepted)
        packed = torch.cat(
            [
                torch.stack([accepted.emitted, accepted.accepted, accepted.saw_eos, accepted.bad], dim=1).to(
                    torch.int64
                ),
                draws,
            ],
            dim=1,
        ).tolist()
        return [
            _unpack(row, proposal, numbers)
            for row, proposal, numbers in zip(batch.rows, proposals, packed, strict=True)
        ]


def _walk(row: Row, proposal: Sequence[int], draws: Sequence[int], broken: Sequence[bool]) -> RowResult:
    """Feed a row's draws to its acceptance; a non-finite position before its end makes the whole row ``bad``."""
    source: Source = "draft" if proposal else "plain"
    acceptance = Acceptance(proposal, row.remaining, frozenset(row.request.eos_ids))
    for token, is_bad in zip(draws, broken, strict=True):
        if is_bad:
            return RowResult(tuple(proposal), (), 0, bad=True, source=source)
        acceptance.accept(token)
        if acceptance.done:
            break
    return RowResult.of(acceptance, source)


def _unpack(row: Row, proposal: Sequence[int], numbers: Sequence[int]) -> RowResult:
    """One row of the result tensor; stop ids that the device does not hold end the burst here (spec 7.13)."""
    emitted, accepted, saw_eos, bad, *draws = numbers
    result = RowResult(
        tuple(proposal),
        tuple(draws[:emitted]),
        accepted,
        bool(saw_eos),
        bad=bool(bad),
        source="draft" if proposal else "plain",
        end_id=draws[emitted] if saw_eos else None,
    )
    beyond = row.request.eos_ids[DEVICE_EOS_IDS:]
    return result.cut_before(frozenset(beyond)) if beyond else result


def _rectangle(flat: torch.Tensor, lengths: torch.Tensor, width: int, fill: int) -> torch.Tensor:
    """Flat ragged rows [N] as [B, width] int64, ``fill`` past each row's length."""
    out = torch.full((len(lengths), width), fill, dtype=torch.int64, device=flat.device)
    inside = torch.arange(width, device=flat.device)[None, :] < lengths[:, None]
    out[inside] = flat.to(torch.int64)
    return out
