"""The row tables' advance after a device round, as tensor operations without a host value (spec 8.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..kernels.acceptance import AcceptedRound, RoundColumns, accept_and_advance
from ..sampling.accept import Accepted, accept_window

if TYPE_CHECKING:
    from ..cache.tables import RowTables


def accept_round(
    tables: RowTables,
    index: torch.Tensor,
    draws: torch.Tensor,
    proposals: torch.Tensor,
    lengths: torch.Tensor,
    bad: torch.Tensor,
) -> AcceptedRound:
    """Accept the windows of the rows ``index`` [B], advance their columns and pack what the host reads: on CUDA in one
    kernel. ``draws`` and ``bad`` [B, W], ``proposals`` [B, K], ``lengths`` [B] as in :func:`accept_window`.

    ``figures`` [B, 5 + K + W] int64: emitted, accepted, saw_eos, bad, length; the K proposals; the W draws.
    """
    if draws.device.type == "cuda":
        return accept_and_advance(_columns(tables), index, draws, proposals, lengths, bad)
    accepted = accept_window(
        draws=draws,
        proposals=proposals,
        lengths=lengths,
        eos_ids=tables.eos_ids[index],
        remaining=tables.remaining[index],
        live=tables.live[index],
        bad=bad,
    )
    advance_columns(tables, index, draws, accepted)
    heads = (accepted.emitted, accepted.accepted, accepted.saw_eos, accepted.bad, lengths)
    figures = torch.cat([torch.stack([head.to(torch.int64) for head in heads], dim=1), proposals, draws], dim=1)
    return AcceptedRound(*accepted, figures)


def _columns(tables: RowTables) -> RoundColumns:
    names = ("pending", "length", "step", "remaining", "live", "bad", "eos_ids", "history")
    return RoundColumns(*(getattr(tables, name) for name in names))


def advance_columns(tables: RowTables, index: torch.Tensor, draws: torch.Tensor, accepted: Accepted) -> None:
    """Advance the rows ``index`` [B] by an accepted window. ``draws`` [B, W] int64.

    ``length += 1 + accepted``, ``step += emitted + saw_eos``, ``remaining -= emitted``, ``pending`` = last emitted
    token, ``live`` = not ended. Rows that are not live or whose logits were bad advance nothing.
    """
    emitted = accepted.emitted.to(torch.int64)
    advances = tables.live[index] & ~accepted.bad
    tables.append_draws(index, draws, torch.where(advances, emitted, 0))
    last = draws.gather(1, (emitted - 1).clamp(min=0)[:, None])[:, 0]
    tables.pending[index] = torch.where(advances & (emitted > 0), last, tables.pending[index])
    tables.length[index] += torch.where(advances, 1 + accepted.accepted.to(torch.int64), 0)
    tables.step[index] += torch.where(advances, emitted + accepted.saw_eos.to(torch.int64), 0)
    tables.remaining[index] -= torch.where(advances, emitted, 0)
    tables.bad[index] |= accepted.bad
    tables.live[index] = advances & ~accepted.ended
