"""Acceptance of whole windows on any device: which draws each row keeps (spec 8.4). Knows no row record."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Accepted(NamedTuple):
    """Per row, all [B]: ``emitted`` and ``accepted`` int64 counts, ``saw_eos``, ``ended`` and ``bad`` bool.

    A row that is not live, or is ``bad``, emits and accepts 0 and neither ends nor sees EOS; a live row goes on iff it
    is neither ``ended`` nor ``bad``. The row's new pending token is draw ``emitted - 1``, if it emitted any.
    """

    emitted: torch.Tensor
    accepted: torch.Tensor
    saw_eos: torch.Tensor
    ended: torch.Tensor
    bad: torch.Tensor


def accept_window(
    draws: torch.Tensor,
    proposals: torch.Tensor,
    lengths: torch.Tensor,
    eos_ids: torch.Tensor,
    remaining: torch.Tensor,
    live: torch.Tensor,
    bad: torch.Tensor,
) -> Accepted:
    """Compare the target's draws with the proposals.

    ``draws`` [B, K + 1] int64; ``proposals`` [B, K] and ``lengths`` [B] (0 .. K) integers: what stands past a row's
    length has no effect; ``eos_ids`` [B, E], padded with -1; ``remaining`` [B]: token budgets, at least 1 for live
    rows; ``live`` [B] bool; ``bad`` [B, K + 1] bool: the logits of the draw were not finite.
    """
    depth = proposals.shape[1]
    place = torch.arange(depth + 1, device=draws.device)
    proposed = place[:depth] < lengths.unsqueeze(1)
    matched = ((draws[:, :depth] == proposals) & proposed).long().cumprod(1).sum(1)
    ends = ((draws.unsqueeze(2) == eos_ids.unsqueeze(1)) & (eos_ids >= 0).unsqueeze(1)).any(2)
    first_end = torch.where(ends, place, depth + 1).amin(1)
    emitted = torch.minimum(torch.minimum(matched + 1, first_end), remaining.long())
    saw_eos = (first_end <= matched) & (first_end < remaining)
    used_bad = (bad & (place < (emitted + saw_eos).unsqueeze(1))).any(1) & live
    going = live & ~used_bad
    emitted = emitted * going
    saw_eos = saw_eos & going
    ended = (saw_eos | (emitted == remaining)) & going
    return Accepted(emitted, torch.minimum(matched, emitted), saw_eos, ended, used_bad)
