"""The block tables of one group: which blocks hold each row's positions, on the host and on the device.

It knows one group and its pool; that all groups move together is the row tables' business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..core.errors import IntegrityError
from .groups import BlockGroupSpec
from .pool import SCRATCH_BLOCK, BlockPool
from .uploads import sent


class BlockTable:
    """Tables of all rows for one group, in logical order: entry p // block_size holds position p.

    A row's table begins with ``freed`` scratch entries (given back behind the window), then blocks. The first
    ``read_only`` entries were adopted from elsewhere and must not be written. ``host`` is [R, width] int64, padded
    with scratch, its last column always scratch. On the CPU the device tensor is the same memory.
    """

    def __init__(
        self, spec: BlockGroupSpec, pool: BlockPool, rows: int, width: int, device: torch.device, shared: bool
    ) -> None:
        self.spec = spec
        self.pool = pool
        self.host: npt.NDArray[np.int64] = np.zeros((rows, width), dtype=np.int64)
        self.flat = self.host.reshape(-1)
        self.blocks: list[list[int]] = [[] for _ in range(rows)]
        self.read_only = [0] * rows
        self.freed = [0] * rows
        self._device = torch.from_numpy(self.host) if shared else torch.zeros(self.host.shape, dtype=torch.int64)
        if not shared:
            self._device = self._device.to(device)
        self._shared = shared
        self._dirty: set[int] = set()

    def device(self) -> torch.Tensor:
        """The tables [R, width] int64 on the device, up to date with the host: changes are queued, not waited for."""
        if self._dirty:
            changed = sorted(self._dirty)
            places = sent(torch.tensor(changed), self._device.device)
            self._device[places] = sent(torch.from_numpy(self.host[changed]), self._device.device)
            self._dirty.clear()
        return self._device

    def held(self, index: int) -> list[int]:
        """Blocks on which the row holds a reference."""
        return self.blocks[index][self.freed[index] :]

    def writable_from(self, index: int) -> int:
        """First logical block that the row may write."""
        return max(self.read_only[index], self.freed[index])

    def grow(self, index: int, count: int, skip: int = 0) -> None:
        """Make the table ``count`` entries long; a new row leaves its first ``skip`` entries scratch.

        Raises :class:`~paceline.core.errors.OutOfBlocks`, changing nothing.
        """
        table = self.blocks[index]
        before = len(table)
        scratch = 0 if table else min(skip, count)
        added = self.pool.allocate(count - before - scratch, (table[-1] or None) if table else None)
        if scratch:
            table.extend([SCRATCH_BLOCK] * scratch)
            self.freed[index] = scratch
        table.extend(added)
        self.host[index, before + scratch : count] = added
        self._touch(index)

    def shrink(self, index: int, count: int) -> None:
        """Release all entries from ``count`` on."""
        table = self.blocks[index]
        if count >= len(table):
            return
        dropped = table[max(count, self.freed[index]) :]
        self.host[index, count : len(table)] = SCRATCH_BLOCK
        del table[count:]
        self.read_only[index] = min(self.read_only[index], count)
        self.freed[index] = min(self.freed[index], count)
        self._touch(index)
        self.pool.release(dropped)

    def free_front(self, index: int, count: int) -> None:
        """Release the first ``count`` entries and leave scratch in their place."""
        table = self.blocks[index]
        begin, end = self.freed[index], min(count, len(table))
        if end <= begin:
            return
        dropped = table[begin:end]
        table[begin:end] = [SCRATCH_BLOCK] * (end - begin)
        self.host[index, begin:end] = SCRATCH_BLOCK
        self.freed[index] = end
        self._touch(index)
        self.pool.release(dropped)

    def adopt(self, index: int, blocks: Sequence[int]) -> None:
        """Start an empty row on blocks of somebody else, read-only; leading scratch entries stand for freed ones."""
        if self.blocks[index]:
            raise IntegrityError(f"row {index} adopts a prefix but holds {self.spec.name} blocks")
        table = list(blocks)
        freed = next((place for place, block in enumerate(table) if block != SCRATCH_BLOCK), len(table))
        self.pool.retain(table[freed:])
        self.blocks[index] = table
        self.host[index, : len(table)] = table
        self.read_only[index] = len(table)
        self.freed[index] = freed
        self._touch(index)

    def shared_from(self, index: int, place: int) -> list[int]:
        """Places from ``place`` on whose block has other owners too."""
        table = self.blocks[index]
        start = max(place, self.freed[index])
        return [p for p in range(start, len(table)) if self.pool.ref_count(table[p]) > 1]

    def replace(self, index: int, place: int, block: int) -> None:
        """Put ``block`` (already owned) at ``place`` and release what stood there."""
        old = self.blocks[index][place]
        self.blocks[index][place] = block
        self.host[index, place] = block
        self._touch(index)
        self.pool.release([old])

    def _touch(self, index: int) -> None:
        if not self._shared:
            self._dirty.add(index)
