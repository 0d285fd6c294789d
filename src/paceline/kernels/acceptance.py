"""Launches of the acceptance kernels. Knows columns of row tables as tensors, no row record.

Legend: B rows of a round, R rows of the tables, K proposals, W = K + 1 window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .draws import power_above


@dataclass(frozen=True)
class RoundColumns:
    """Columns [R] that a round advances, ``eos_ids`` [R, E] int64 and ``history`` [R, L] int32 (last column spare)."""

    pending: torch.Tensor
    length: torch.Tensor
    step: torch.Tensor
    remaining: torch.Tensor
    live: torch.Tensor
    bad: torch.Tensor
    eos_ids: torch.Tensor
    history: torch.Tensor


@dataclass(frozen=True)
class AcceptedRound:
    """``emitted``, ``accepted`` [B] int64, ``saw_eos``, ``ended``, ``bad`` [B] bool, ``figures`` [B, 5 + K + W]."""

    emitted: torch.Tensor
    accepted: torch.Tensor
    saw_eos: torch.Tensor
    ended: torch.Tensor
    bad: torch.Tensor
    figures: torch.Tensor


def accept_and_advance(
    columns: RoundColumns,
    index: torch.Tensor,
    draws: torch.Tensor,
    proposals: torch.Tensor,
    lengths: torch.Tensor,
    bad: torch.Tensor,
) -> AcceptedRound:
    """Accept ``draws`` [B, W] int64 against ``proposals`` [B, K] int64 of ``lengths`` [B] int64, advance the columns of
    the rows ``index`` [B], pack the figures. ``bad`` [B, W] bool. Rows that are not live keep their columns."""
    from .triton.accept import accept_kernel

    rows, width = draws.shape
    device = draws.device
    figures = torch.empty(rows, 4 + 2 * width, dtype=torch.int64, device=device)
    emitted, accepted = (torch.empty(rows, dtype=torch.int64, device=device) for _ in range(2))
    flags = torch.empty(3, rows, dtype=torch.int8, device=device)
    accept_kernel[(rows,)](
        draws.contiguous(),
        proposals.contiguous(),
        lengths,
        bad.contiguous().view(torch.int8),
        index,
        columns.pending,
        columns.length,
        columns.step,
        columns.remaining,
        columns.live.view(torch.int8),
        columns.bad.view(torch.int8),
        columns.eos_ids,
        columns.history,
        figures,
        emitted,
        accepted,
        flags,
        width,
        columns.history.shape[1],
        rows,
        EOS=columns.eos_ids.shape[1],
        PLACES=power_above(width),
        num_warps=1,
    )
    saw_eos, ended, broken = flags.view(torch.bool)
    return AcceptedRound(emitted, accepted, saw_eos, ended, broken, figures)


def flip_coins(
    draws: torch.Tensor,
    proposals: torch.Tensor,
    lengths: torch.Tensor,
    key: tuple[torch.Tensor, torch.Tensor],
    rate: torch.Tensor,
    domain: int,
) -> torch.Tensor:
    """Draws [B, W] with those below their coin replaced by the proposal, the others made unequal to it; see
    ``sampling.forced``. ``rate``: one float64 number."""
    from .triton.accept import coin_kernel

    out = torch.empty_like(draws)
    rows, width = draws.shape
    coin_kernel[(rows,)](
        draws, proposals, lengths, *key, rate, out, width, DOMAIN=domain, PLACES=power_above(width), num_warps=1
    )
    return out
