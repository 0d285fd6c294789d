"""Does an operation give each row the same bits however many rows share the call? Asked of the machine at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_SMALL = (1, 2, 3, 5, 8, 16, 17, 32, 33, 48)
_LARGE = (64, 100, 256)
_LARGE_LIMIT = 96 << 20


@dataclass(frozen=True)
class Invariance:
    """``min_rows``: calls with fewer rows must be padded to it. ``narrow``: equal bits up to 48 rows; ``wide``: for any
    number of rows that was tried."""

    min_rows: int
    narrow: bool
    wide: bool


def row_invariance(
    call: Callable[[torch.Tensor], torch.Tensor], width: int, dtype: torch.dtype, work: int
) -> Invariance:
    """Compare the first rows of ``call(x)`` over several row counts of ``x`` [rows, width].

    ``work``: multiply-adds per row; wide calls of expensive operations are compared with fewer row counts.
    """
    counts = _SMALL + (_LARGE if work <= _LARGE_LIMIT else _LARGE[:1])
    generator = torch.Generator().manual_seed(71)
    x = torch.randn(counts[-1], width, generator=generator).to(dtype)
    reference = call(x)
    equal = {rows: torch.equal(call(x[:rows]), reference[:rows]) for rows in counts[:-1]}
    for min_rows in (1, 2, 3):
        if all(equal[rows] for rows in _SMALL if rows >= min_rows):
            return Invariance(min_rows, True, all(same for rows, same in equal.items() if rows >= min_rows))
    return Invariance(1, False, False)
