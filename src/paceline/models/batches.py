"""Splits a forward into rows with long prompt chunks and the others, for formats whose products differ between them.

A row's side depends on its own chunk alone, so its results cannot depend on what shares the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..core.batch import ForwardBatch, ForwardResult

WIDE_QUERIES = 64
"""Rows with more query tokens than this are prompt chunks for which reading weights is no longer what costs."""


@dataclass(frozen=True)
class Part:
    """``places`` [n]: flat places of the part's tokens in the whole forward."""

    batch: ForwardBatch
    places: torch.Tensor
    wide: bool


def split_wide(batch: ForwardBatch) -> list[Part]:
    """The long chunks and the other rows of ``batch``, whichever there are."""
    wide = [length > WIDE_QUERIES for length in batch.query_lens]
    if all(wide):
        return [Part(batch, torch.arange(len(batch.tokens), device=batch.tokens.device), True)]
    return [_part(batch, [i for i, is_wide in enumerate(wide) if is_wide == side], side) for side in (True, False)]


def _part(batch: ForwardBatch, rows: list[int], wide: bool) -> Part:
    starts = [sum(batch.query_lens[:row]) for row in rows]
    device = batch.tokens.device
    places = torch.cat(
        [torch.arange(at, at + batch.query_lens[row], device=device) for row, at in zip(rows, starts, strict=True)]
    )
    chosen = torch.tensor(rows, device=device)
    part = replace(
        batch,
        tokens=batch.tokens[places],
        positions=batch.positions[places],
        indices=batch.indices[chosen],
        query_lens=[batch.query_lens[row] for row in rows],
        context_lens=[batch.context_lens[row] for row in rows],
        slots={name: slots[places] for name, slots in batch.slots.items()},
        block_tables={name: table[chosen] for name, table in batch.block_tables.items()},
    )
    return Part(part, places, wide)


def join_results(parts: Sequence[Part], results: Sequence[ForwardResult]) -> ForwardResult:
    """Put the parts' results back in the order of the whole forward."""
    order = torch.cat([part.places for part in parts]).argsort()
    hidden = torch.cat([result.hidden for result in results])[order]
    contexts = [result.context for result in results if result.context is not None]
    return ForwardResult(hidden, torch.cat(contexts)[order] if contexts else None)
