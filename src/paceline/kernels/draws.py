"""Launches of the sampler's kernels: draws from float32 or bfloat16 logits by the columns of the rows they belong to.

Knows columns and shapes, no request. Buffers have sizes that depend on the number of rows and of logits alone.
Legend: B rows, W logits rows per row, M = B * W, N logits per row, R rows of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Logits of one row that a program takes at a time.
TILE = 1024
#: Programs of one launch that keep a large GPU busy.
PROGRAMS = 1056


@dataclass(frozen=True)
class DrawPlace:
    """Which row of the columns logits row m has: ``index[m // width]`` (``index`` ``None``: m), drawn at
    ``step + offset + m % width``."""

    index: torch.Tensor | None = None
    width: int = 1
    offset: int = 0


@dataclass(frozen=True)
class DrawColumns:
    """Parameters [R] of draws, as in ``sampling.params``, and whose they are."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    step: torch.Tensor
    place: DrawPlace = DrawPlace()

    @property
    def layout(self) -> dict[str, bool | int]:
        """Constants of the kernels."""
        return {"WIDTH": self.place.width, "INDEXED": self.place.index is not None}

    @property
    def owners(self) -> torch.Tensor:
        """What the kernels read in place of ``index`` where there is none, unread."""
        return self.step if self.place.index is None else self.place.index


def available(logits: torch.Tensor) -> bool:
    """Whether the kernels can draw from ``logits``: on CUDA, in a format that float32 holds."""
    return logits.device.type == "cuda" and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)


def draw_rows(
    logits: torch.Tensor, columns: DrawColumns, ids: torch.Tensor | None, *, greedy: bool, filtered: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [M] int64 and bad [M] bool of ``logits`` [M, N], whose places are ``ids`` [N] int64 (``None``: places).

    ``greedy``: no row samples; ``filtered``: some row has top-k, top-p or min-p.
    """
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    if filtered and not greedy:
        from .filtered import draw_filtered

        return draw_filtered(logits, columns, ids)
    return _draw_plain(logits, columns, ids, greedy)


def _draw_plain(
    logits: torch.Tensor, columns: DrawColumns, ids: torch.Tensor | None, greedy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    from .triton import sample

    rows, count = logits.shape
    parts, share = split(rows, count)
    best = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    place, broken = torch.empty_like(best, dtype=torch.int32), torch.empty_like(best, dtype=torch.int32)
    sample.draw_kernel[(rows, parts)](
        logits,
        columns.step if ids is None else ids,
        columns.owners,
        columns.temperature,
        columns.seed,
        columns.step,
        best,
        place,
        broken,
        logits.stride(0),
        count,
        columns.place.offset,
        share,
        LISTED=ids is not None,
        GREEDY=greedy,
        BLOCK=TILE,
        **columns.layout,
    )
    return combine(best, place, broken, ids)


def combine(
    best: torch.Tensor, place: torch.Tensor, broken: torch.Tensor, ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [M] int64 and bad [M] bool from the parts [M, parts] of each row."""
    from .triton import sample

    rows, parts = best.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=best.device)
    bad = torch.empty(rows, dtype=torch.int8, device=best.device)
    listed = tokens if ids is None else ids
    sample.combine_kernel[(rows,)](
        best, place, broken, listed, tokens, bad, parts, LISTED=ids is not None, PARTS=power_above(parts), num_warps=1
    )
    return tokens, bad.view(torch.bool)


def split(rows: int, count: int) -> tuple[int, int]:
    """Into how many parts a row of ``count`` logits is cut, and the logits of a part (a multiple of the tile)."""
    tiles = -(-count // TILE)
    per_part = -(-tiles // max(1, min(tiles, PROGRAMS // rows)))
    return -(-tiles // per_part), per_part * TILE


def power_above(number: int) -> int:
    """The power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()
