"""Prompt lookup over the histories of many rows at once: where the newest tokens occurred before, and what followed.

Knows histories as a tensor, no row record. One search: the reference on any device, a kernel on CUDA.
Legend: R rows of the tables, B rows asked for, L history columns, K proposals, E end ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class LookupRule:
    """Which occurrence counts: that of the last ``window_max`` down to ``window_min`` tokens, longest first; of equally
    long ones the leftmost, or the ``latest``. An id of ``eos_ids`` ends a proposal and is not part of it."""

    window_max: int
    window_min: int
    latest: bool
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Texts:
    """``history`` [R, L] int32, of which row r's text is the first ``length[r] + 1`` tokens (``length`` [R] int64)."""

    history: torch.Tensor
    length: torch.Tensor


def look_up(
    texts: Texts, rule: LookupRule, index: torch.Tensor, depths: torch.Tensor, depth: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Proposals [B, K] int32 and their lengths [B] int32 for the rows ``index`` [B] int64: at most ``depths`` [B] each,
    K = ``depth``. Entries past a row's length are 0. No value of another device is read."""
    if texts.history.device.type == "cuda" and depth:
        from .triton.lookup import look_up as launch

        tokens, lengths = launch(texts, rule, index, depths, depth)
        return tokens, lengths
    return look_up_plain(texts, rule, index, depths, depth)


def look_up_plain(
    texts: Texts, rule: LookupRule, index: torch.Tensor, depths: torch.Tensor, depth: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`look_up` by tensor operations over whole histories."""
    counts = texts.length[index] + 1
    history = texts.history
    if history.device.type == "cpu" and len(index):
        history = history[:, : int(counts.max())]
    history = history.index_select(0, index)
    columns = history.shape[1]
    found = _best_end(_match_lengths(history, counts, rule), rule)
    first = found + 1
    places = first.unsqueeze(1) + torch.arange(depth, device=history.device)
    copied = history.gather(1, places.clamp(0, columns - 1))
    most = torch.minimum(depths.clamp(0, depth), counts - first)
    most = torch.where(found >= 0, most, 0)
    usable = (torch.arange(depth, device=history.device) < most.unsqueeze(1)) & ~_is_one_of(copied, rule.eos_ids)
    usable = usable.long().cumprod(1)
    return copied * usable.to(torch.int32), usable.sum(1).to(torch.int32)


def _match_lengths(history: torch.Tensor, counts: torch.Tensor, rule: LookupRule) -> torch.Tensor:
    """How many of a row's newest tokens end at each column [B, L]: at most ``window_max``, 0 where none follows."""
    columns = torch.arange(history.shape[1], device=history.device)
    lengths = torch.zeros_like(history)
    running = columns < (counts - 1).unsqueeze(1)
    for back in range(rule.window_max):
        newest = history.gather(1, (counts - 1 - back).clamp(min=0).unsqueeze(1))
        before = F.pad(history, (back, 0))[:, : history.shape[1]]
        running = running & (before == newest) & (columns >= back)
        lengths += running
    return lengths


def _best_end(lengths: torch.Tensor, rule: LookupRule) -> torch.Tensor:
    """Column at which the chosen occurrence ends, -1 if there is none: [B] int64."""
    best = lengths.amax(1, keepdim=True)
    columns = torch.arange(lengths.shape[1], device=lengths.device)
    chosen = lengths == best
    if rule.latest:
        end = torch.where(chosen, columns, -1).amax(1)
    else:
        end = torch.where(chosen, columns, lengths.shape[1]).amin(1)
    return torch.where(best.squeeze(1) >= rule.window_min, end, -1)


def _is_one_of(tokens: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
    hits = torch.zeros_like(tokens, dtype=torch.bool)
    for token in ids:
        hits |= tokens == token
    return hits
