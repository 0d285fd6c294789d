"""Which tile a matrix product runs with: a tuned table per device and shape, and a rule for everything else.

Knows numbers only; nothing here touches a device, and nothing is tuned while requests run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """``outputs`` x ``rows`` results per program, ``depth`` inputs per step, in ``warps`` warps and ``stages`` buffers.

    Outputs are a multiple of 64: one warp group of matrix instructions. ``parts``: such blocks of outputs per program
    (Hopper). ``early``: the next launch may start at once, not only with the last step (Hopper). None of these changes
    a result's bits.
    """

    outputs: int
    depth: int
    rows: int
    warps: int = 4
    stages: int = 4
    parts: int = 1
    early: bool = True


BUCKETS = (16, 32, 64, 128, 256, 512)
"""Numbers of rows that have a tile of their own; more rows run as the last."""

_MULTIPROCESSORS = 132
_SHARED_BYTES = 220 << 10

TUNED: Mapping[tuple[str, int, int], Mapping[int, Tile]] = {
    ("NVIDIA H200", 6144, 4096): {
        16: Tile(64, 256, 16, 4, 4),
        32: Tile(64, 128, 32, 4, 4),
        64: Tile(64, 128, 64, 4, 6),
        128: Tile(64, 64, 64, 4, 6),
        256: Tile(128, 64, 128, 8, 5),
    },
    ("NVIDIA H200", 4096, 4096): {
        16: Tile(64, 128, 16, 4, 8),
        32: Tile(64, 128, 32, 4, 8),
        64: Tile(64, 128, 64, 4, 6),
        128: Tile(64, 128, 128, 4, 4),
        256: Tile(64, 128, 128, 4, 4),
    },
    ("NVIDIA H200", 24576, 4096): {
        16: Tile(64, 128, 16, 4, 4, 3),
        32: Tile(64, 128, 32, 4, 4, 3),
        64: Tile(64, 128, 64, 4, 3, 3),
        128: Tile(64, 64, 128, 8, 5, 3),
        256: Tile(64, 64, 128, 4, 4, 3),
        512: Tile(64, 64, 128, 4, 4, 3),
    },
    ("NVIDIA H200", 4096, 12288): {
        16: Tile(64, 128, 16, 4, 8),
        32: Tile(64, 128, 32, 4, 8),
        64: Tile(64, 128, 64, 4, 6),
        128: Tile(64, 128, 128, 4, 4),
        256: Tile(128, 64, 128, 8, 6),
    },
    ("NVIDIA H200", 151936, 4096): {
        16: Tile(64, 128, 16, 4, 4, early=False),
        32: Tile(64, 128, 32, 4, 3, early=False),
        64: Tile(128, 64, 64, 4, 8, early=False),
        128: Tile(128, 64, 128, 8, 5, early=False),
        256: Tile(128, 64, 256, 8, 4, early=False),
    },
}
"""(device, outputs, inputs) -> bucket -> tile. The sizes are those of Qwen3-8B."""


def bucket(rows: int) -> int:
    """The smallest bucket that holds ``rows``, or the largest."""
    return next((size for size in BUCKETS if rows <= size), BUCKETS[-1])


def product_tile(device: str, outputs: int, inputs: int, rows: int) -> Tile:
    """Tile for ``rows`` rows of a product with weights [outputs, inputs] of 2 bytes each."""
    held = bucket(rows)
    tuned = TUNED.get((device, outputs, inputs), {})
    return tuned.get(held) or _default(-(-outputs // 64), held)


def segments(outputs: int, inputs: int) -> int:
    """Stretches of the inputs that are summed by themselves: more than one where too few outputs keep a large device
    busy. Part of what a product's sums are, so it depends on the weights alone."""
    blocks = -(-outputs // 64)
    for count in (4, 2):
        if blocks * count <= _MULTIPROCESSORS and inputs % (128 * count) == 0 and inputs // count >= 512:
            return count if blocks < 64 or inputs >= 8192 else 1
    return 1


def _default(blocks: int, rows: int) -> Tile:
    """``blocks`` of 64 outputs. Few of them get deep buffers; many share a multiprocessor, so that all run at once."""
    if rows >= 256:
        return Tile(128, 64, 128, 8, 5)
    if rows == 128:
        return Tile(64, 128, 128, 4, 4) if blocks <= _MULTIPROCESSORS else Tile(128, 64, 128, 8, 3)
    if blocks > _MULTIPROCESSORS:
        return Tile(64, 128, rows, 4, 3)
    most = _SHARED_BYTES // (256 * (64 + rows))
    return Tile(64, 128, rows, 4, min(8, most))
