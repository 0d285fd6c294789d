"""Launches of the filtered sampler: three passes over the logits and two small kernels (see ``triton.filtered``).

Legend: M rows of logits, N logits per row.
"""

from __future__ import annotations

import torch

from .draws import TILE, DrawColumns, combine, power_above, split

BINS = 256
"""Bins of equal width in which ids are counted by how far they are below the largest. Counting costs in proportion."""
CAPACITY = 8192
"""Ids per row whose place in the order may be in question; rows with more are read where they lie."""
_SIZE, _WAYS = 512, 16
_COUNT_TILE = 4096
"""Logits that are counted together: the bins are cleared and read once for each such tile."""


def draw_filtered(
    logits: torch.Tensor, columns: DrawColumns, ids: torch.Tensor | None, capacity: int = CAPACITY
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [M] int64 and bad [M] bool of ``logits`` [M, N]; see :func:`.draws.draw_rows`."""
    from .triton import filtered as kernels

    logits = logits if logits.dtype == torch.float32 else logits.float()
    rows, count = logits.shape
    parts, share = split(rows, count)
    device = logits.device
    counts = torch.empty(rows, BINS, dtype=torch.int32, device=device)
    masses = torch.empty(rows, 4, dtype=torch.int64, device=device)
    plan = torch.empty(rows, 9, dtype=torch.int32, device=device)
    peaks = torch.empty(rows, parts, dtype=torch.float32, device=device)
    lows, best = torch.empty_like(peaks), torch.empty_like(peaks)
    place, broken = torch.empty_like(peaks, dtype=torch.int32), torch.empty_like(peaks, dtype=torch.int32)
    buffer = torch.empty(rows, capacity, dtype=torch.float32, device=device)
    buffer_places = torch.empty_like(buffer, dtype=torch.int32)
    copied = plan.view(-1)[rows * 8 :]
    stride, grid = logits.stride(0), (rows, parts)
    listed = columns.step if ids is None else ids
    layout = {**columns.layout, "PARTS": power_above(parts), "BINS": BINS}
    exact = {"DEVICE": device.type == "cuda"}
    heat, top_k, top_p, min_p = columns.temperature, columns.top_k, columns.top_p, columns.min_p
    seed, step, index = columns.seed, columns.step, columns.owners
    kernels.scan_kernel[grid](
        logits, peaks, lows, best, place, broken, counts, masses, stride, count, share, BINS=BINS, BLOCK=TILE
    )
    kernels.count_kernel[grid](
        logits, index, heat, top_k, top_p, peaks, lows, counts, masses, stride, count, share, parts,
        BLOCK=power_above(min(_COUNT_TILE, share)), num_warps=8, **layout, **exact,
    )  # fmt: skip
    kernels.plan_kernel[(rows,)](
        index, heat, top_k, top_p, peaks, lows, counts, masses, plan, copied, count, parts, capacity, **layout
    )
    kernels.gather_kernel[grid](
        logits, listed, index, heat, min_p, seed, step, peaks, lows, plan, masses, copied, buffer, buffer_places,
        best, place, stride, count, columns.place.offset, share, parts, capacity,
        LISTED=ids is not None, BLOCK=TILE, **layout, **exact,
    )  # fmt: skip
    kernels.finish_kernel[(rows,)](
        logits, listed, index, heat, top_k, top_p, min_p, seed, step, peaks, lows, plan, masses, buffer,
        buffer_places, best, place, stride, count, columns.place.offset, parts, capacity,
        LISTED=ids is not None, SIZE=_SIZE, WAYS=_WAYS, num_warps=8, **layout, **exact,
    )  # fmt: skip
    return combine(best, place, broken, ids)
