"""Packed masks over the vocabulary: which bits belong to it, and how they are applied to logits. Knows no grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def mask_words(vocab_size: int) -> int:
    """Words of a mask over ``vocab_size`` ids."""
    return (vocab_size + 31) // 32


def packed(ids: Iterable[int], vocab_size: int) -> NDArray[np.uint32]:
    """A mask [ceil(V / 32)] that permits just ``ids``; ids outside the vocabulary are left out."""
    words = np.zeros(mask_words(vocab_size), dtype=np.uint32)
    for token in ids:
        if 0 <= token < vocab_size:
            words[token // 32] |= np.uint32(1 << (token % 32))
    return words


def permits(mask: NDArray[np.int32], token: int) -> bool:
    """Whether a mask [ceil(V / 32)] permits an id."""
    return 0 <= token < 32 * len(mask) and bool(int(mask[token // 32]) >> (token % 32) & 1)


def permitted_ids(mask: NDArray[np.int32]) -> list[int]:
    """The ids a mask [ceil(V / 32)] permits, ascending."""
    ids: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return ids


def apply_bitmask(
    logits: torch.Tensor, masks: NDArray[np.int32] | torch.Tensor, rows: Sequence[int] | None = None
) -> torch.Tensor:
    """Set the logits of ids that are not permitted to -inf, in place, and return ``logits``.

    ``logits`` [N, V] float; ``masks`` [M, ceil(V / 32)] int32 for the rows ``rows`` [M] of ``logits`` (``None``: all
    rows in order), other rows are left alone. Nothing is computed per id in Python. On a device the masks are uploaded
    once and unpacked there. A row that is not finite stays visible as such: NaN and +inf are never masked.
    """
    import torch

    if logits.device.type == "cpu":
        host = masks.numpy() if isinstance(masks, torch.Tensor) else masks
        return _apply_on_host(logits, host, range(logits.shape[0]) if rows is None else rows)
    return _apply_on_device(logits, masks if isinstance(masks, torch.Tensor) else torch.from_numpy(masks), rows)


def _apply_on_device(logits: torch.Tensor, masks: torch.Tensor, rows: Sequence[int] | None) -> torch.Tensor:
    import torch

    forbidden = ~_unpacked(masks.to(logits.device, non_blocking=True), logits.shape[-1])
    if rows is None:
        return logits.masked_fill_(forbidden & (logits < torch.inf), -torch.inf)
    index = torch.tensor(list(rows), dtype=torch.int64, device=logits.device)
    chosen = logits[index]
    logits[index] = chosen.masked_fill_(forbidden & (chosen < torch.inf), -torch.inf)
    return logits


def _apply_on_host(logits: torch.Tensor, masks: NDArray[np.int32], rows: Sequence[int]) -> torch.Tensor:
    """Row by row, so that what a row needs stays in the processor's cache."""
    import torch

    width = logits.shape[-1]
    for place, mask in zip(rows, masks, strict=True):
        bits = np.unpackbits(np.invert(mask).view(np.uint8), count=width, bitorder="little")
        row = logits[place]
        finite = row.amax() < torch.inf  # false for NaN too
        forbidden = torch.from_numpy(bits.view(np.bool_))
        row.masked_fill_(forbidden if finite else forbidden & (row < torch.inf), -torch.inf)
    return logits


def _unpacked(masks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Packed words [M, ceil(V / 32)] int32 as permissions [M, V] bool."""
    import torch

    shifts = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = (masks.unsqueeze(-1) >> shifts) & 1
    return bits.reshape(masks.shape[0], -1)[:, :vocab_size].to(torch.bool)
