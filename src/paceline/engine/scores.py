"""Log-probabilities of delivered tokens: taken from the logits a round drew from, for used draws only (spec 13.15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..core.round import RowResult
from ..core.row import Row
from ..sampling.logprobs import TokenLogprobs, Wanted, capture_logprobs


@dataclass(frozen=True)
class WindowScores:
    """Logits of flat windows [N, V]: ``raw`` as the model gave them, ``processed`` after penalties, bans and masks."""

    raw: torch.Tensor
    processed: torch.Tensor


def wants_logprobs(rows: Sequence[Row]) -> bool:
    """Whether any of the rows asks for log-probabilities of its output."""
    return any(row.request.params.logprobs is not None for row in rows)


def wants_raw(rows: Sequence[Row]) -> bool:
    """Whether any of the rows needs the logits as they are before processing."""
    return any(row.request.params.logprobs is not None and row.request.params.logprobs_mode == "raw" for row in rows)


def add_logprobs(
    rows: Sequence[Row], results: Sequence[RowResult], query_lens: Sequence[int], scores: WindowScores
) -> list[RowResult]:
    """The results with one :class:`TokenLogprobs` per emitted token as metadata, for rows that ask."""
    found = list(results)
    for mode, logits in (("raw", scores.raw), ("processed", scores.processed)):
        wanted: list[Wanted] = []
        owners: list[int] = []
        first = 0
        for place, (row, result, count) in enumerate(zip(rows, results, query_lens, strict=True)):
            top = row.request.params.logprobs
            if top is not None and row.request.params.logprobs_mode == mode:
                wanted.extend(Wanted(first + i, token, top) for i, token in enumerate(result.emitted))
                owners.extend([place] * len(result.emitted))
            first += count
        if wanted:
            _attach(found, owners, capture_logprobs(logits, wanted))
    return found


def _attach(results: list[RowResult], owners: Sequence[int], records: Sequence[TokenLogprobs]) -> None:
    by_row: dict[int, list[TokenLogprobs]] = {}
    for owner, record in zip(owners, records, strict=True):
        by_row.setdefault(owner, []).append(record)
    for owner, mine in by_row.items():
        results[owner] = replace(results[owner], metadata=mine)
