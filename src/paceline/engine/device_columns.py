"""The row tables' advance after a device round, as tensor operations without a host value (spec 8.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..cache.tables import RowTables
    from ..sampling.accept import Accepted


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
