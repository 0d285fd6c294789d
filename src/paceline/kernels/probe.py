"""Does an operation give each row the same bits however many rows share the call? Asked of the machine at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

PROBED_ROWS = 256
_SMALL = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48)
_LARGE = (64, 100, PROBED_ROWS)
_LARGE_LIMIT = 96 << 20


@dataclass(frozen=True)
class Invariance:
    """``min_rows``: calls with fewer rows must be padded to it. ``narrow``: equal bits up to 48 rows; ``wide``: for any
    number of rows that was tried."""

    min_rows: int
    narrow: bool
    wide: bool


def row_invariance(call: Callable[[slice], torch.Tensor], work: int) -> Invariance:
    """Compare ``call(rows)`` over many slices of PROBED_ROWS rows with what one call of all of them gives.

    ``work``: multiply-adds per row; the widest calls are left out for very expensive operations (LM heads).
    """
    counts = _SMALL + (_LARGE if work <= _LARGE_LIMIT else _LARGE[:1])
    reference = call(slice(0, counts[-1]))
    equal = {rows: _same(call, reference, rows) for rows in counts[:-1]}
    for min_rows in (1, 2, 3):
        if all(equal[rows] for rows in _SMALL if rows >= min_rows):
            return Invariance(min_rows, True, all(same for rows, same in equal.items() if rows >= min_rows))
    return Invariance(1, False, False)


def _same(call: Callable[[slice], torch.Tensor], reference: torch.Tensor, rows: int) -> bool:
    """A dozen places for calls of few rows: one alone may agree by chance after rounding."""
    starts = range(0, 12 * rows, rows) if rows <= 3 else (0, rows // 2)
    places = [slice(start, start + rows) for start in starts if start + rows <= reference.shape[0]]
    return all(torch.equal(call(place), reference[place]) for place in places)


def cancelling_rows(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Inputs [PROBED_ROWS, K] whose products with the given weight rows [n, K] nearly cancel.

    The sum is then small against its terms, so that another order of summation shows in the result even after it has
    been rounded to a short format. Random inputs would hide most differences.
    """
    generator = torch.Generator().manual_seed(71)
    x = torch.randn(PROBED_ROWS, weights.shape[1], generator=generator, dtype=torch.float64)
    rows = weights[: max(1, weights.shape[1] // 2)].double()
    inverse: torch.Tensor = torch.linalg.pinv(rows)
    return (x - x @ inverse @ rows).to(dtype)
