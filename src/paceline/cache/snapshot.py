"""One row's KV taken out to host memory and put back into fresh blocks, bit for bit.

It knows tables and store. What else a row needs to go on (tokens, steps, seeds) is in its ``Row``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..core.errors import IntegrityError
from .store import KVStore
from .tables import RowTables


@dataclass(frozen=True)
class RowSnapshot:
    """KV of positions below ``length``, on the host.

    ``first``: group -> first position held (above 0 where a sliding group had freed what lies before; a multiple of
    the block size). ``tensors``: group -> keys and values of each layer in the order of ``KVStore.tensors``, each
    [length - first, kv_heads, D].
    """

    length: int
    first: Mapping[str, int]
    tensors: Mapping[str, Sequence[torch.Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of host memory held."""
        return sum(t.numel() * t.element_size() for group in self.tensors.values() for t in group)


def snapshot_bytes(tables: RowTables, store: KVStore, index: int, length: int) -> int:
    """Bytes that :func:`take_snapshot` would take, for a tier that is bounded in bytes."""
    size = store.dtype.itemsize
    return sum(
        group.bytes_per_token(size) * max(0, length - tables.freed_behind(index, group.name) * tables.block_size)
        for group in tables.groups
    )


def take_snapshot(tables: RowTables, store: KVStore, index: int, length: int) -> RowSnapshot:
    """Copy the row's KV of positions below ``length`` in every group to host memory; the row is left as it is.

    Raises :class:`IntegrityError` if the row has no blocks for them.
    """
    if length > tables.covered(index):
        raise IntegrityError(f"row {index} has no blocks for the {length} positions of its snapshot")
    first, copies = {}, {}
    for group in tables.groups:
        start = tables.freed_behind(index, group.name) * tables.block_size
        slots = _slots(tables, index, group.name, (start, length)).to(store.device)
        first[group.name] = start
        copies[group.name] = [memory.index_select(0, slots).cpu() for memory in store.tensors(group.name)]
    return RowSnapshot(length, first, copies)


def restore_snapshot(tables: RowTables, store: KVStore, index: int, snapshot: RowSnapshot) -> None:
    """Take fresh blocks for a row without any and write the snapshot into them.

    Raises :class:`~paceline.core.errors.OutOfBlocks`, leaving the row without blocks.
    """
    if tables.holds_blocks(index):
        raise IntegrityError(f"row {index} is restored but already holds blocks")
    skip = {name: start // tables.block_size for name, start in snapshot.first.items()}
    tables.reserve(index, snapshot.length, skip)
    for group in tables.groups:
        slots = _slots(tables, index, group.name, (snapshot.first[group.name], snapshot.length)).to(store.device)
        for memory, copy in zip(store.tensors(group.name), snapshot.tensors[group.name], strict=True):
            memory.index_copy_(0, slots, copy.to(store.device))


def _slots(tables: RowTables, index: int, group: str, span: tuple[int, int]) -> torch.Tensor:
    """Slots [n] of positions ``span[0] .. span[1] - 1``; none if the span is empty."""
    positions = torch.arange(span[0], max(span))
    blocks = torch.tensor(tables.blocks(index, group), dtype=torch.int64)
    return blocks[positions // tables.block_size] * tables.block_size + positions % tables.block_size
