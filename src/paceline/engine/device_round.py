"""One round as a function of device tensors: draft, verify, sample, accept, advance, commit (spec 7.6, 10.3).

Nothing here reads a value of the device or has a size that depends on one, so that a graph can capture it.
Legend: B rows, K proposals at most, W = K + 1 window, F figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..core.batch import Window
from ..core.request import DEVICE_EOS_IDS
from ..core.round import RowResult, Source
from ..core.row import Row
from ..kernels.windows import Offer
from .device_columns import accept_round
from .device_windows import round_windows
from .drafting import DirectDrafter, GuardedDrafter
from .draws import Flavor, RowSampler
from .state import EngineParts


@dataclass(frozen=True)
class RoundShape:
    """What must be known when a round is built: ``drafts`` chain steps of the device drafter (0 = it does not run),
    ``given`` columns of proposals that were uploaded, and the ``flavor`` of its draws."""

    drafts: int
    given: int
    flavor: Flavor

    @property
    def depth(self) -> int:
        """K: proposals per row that the round has room for."""
        return max(self.drafts, self.given)


@dataclass(frozen=True)
class RoundInputs:
    """``index`` [B] int64 rows; ``depths`` [B] int64: most proposals of the device drafter per row; ``proposals``
    [B, given] int64 and ``lengths`` [B] int64: uploaded ones, which go before the drafter's where a length is > 0."""

    index: torch.Tensor
    depths: torch.Tensor
    proposals: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True)
class RoundMachine:
    """What device rounds are made of."""

    parts: EngineParts
    sampler: RowSampler
    drafter: GuardedDrafter | DirectDrafter


def device_round(machine: RoundMachine, inputs: RoundInputs, shape: RoundShape) -> torch.Tensor:
    """Run one round over the columns of the row tables and return its figures [B, 5 + K + W] int64:

    emitted, accepted, saw_eos, bad, number of proposals; the K proposals; the W draws.
    """
    parts, sampler = machine.parts, machine.sampler
    tables, index = parts.tables, inputs.index
    sampler.flavor = shape.flavor
    windows = round_windows(tables, _offer(machine, inputs, shape))
    proposals, lengths = windows.proposals, windows.lengths
    result = parts.target.forward(windows.batch, machine.drafter.taps)
    draws, bad = sampler.draw_device(parts.target.logits(result.hidden), index, shape.depth + 1)
    if parts.forced is not None:
        draws = parts.forced.apply(draws, proposals, lengths, (tables.seed[index], tables.step[index]))
    accepted = accept_round(tables, index, draws, proposals, lengths, bad)
    machine.drafter.commit_device(index, Window(windows.batch, result.for_drafter), accepted.accepted)
    return accepted.figures


def _offer(machine: RoundMachine, inputs: RoundInputs, shape: RoundShape) -> Offer:
    """What the rows may propose: uploaded proposals where there are any, else the drafter's."""
    vocabulary = machine.parts.target.vocab_size
    offer = Offer(inputs.index, shape.depth, vocabulary, inputs.depths, inputs.proposals, inputs.lengths)
    if not shape.drafts:
        return offer
    draft = machine.drafter.draft_device(inputs.index, inputs.depths, shape.drafts)
    return offer if draft is None else replace(offer, drafted=draft.tokens, drafted_lengths=draft.lengths)


def unpack(row: Row, figures: Sequence[int], depth: int, source: Source = "draft") -> RowResult:
    """One row of the figures; stop ids that the device does not hold end the burst here (spec 7.13)."""
    emitted, accepted, saw_eos, bad, count = figures[:5]
    proposals, draws = figures[5 : 5 + count], figures[5 + depth :]
    result = RowResult(
        tuple(proposals),
        tuple(draws[:emitted]),
        accepted,
        bool(saw_eos),
        bad=bool(bad),
        source=source if count else "plain",
        end_id=draws[emitted] if saw_eos else None,
    )
    beyond = row.request.eos_ids[DEVICE_EOS_IDS:]
    return result.cut_before(frozenset(beyond)) if beyond else result
