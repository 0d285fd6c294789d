"""Blocks that several owners hold: prefixes lent and adopted, copies made before a shared block is written.

Each function moves all groups or none. ``tables``: group name -> block table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.errors import IntegrityError, OutOfBlocks
from .block_table import BlockTable
from .groups import blocks_spanning
from .pool import SCRATCH_BLOCK
from .store import KVStore


def adopt_blocks(
    tables: Mapping[str, BlockTable], index: int, blocks: Mapping[str, Sequence[int]], length: int
) -> None:
    """Start row ``index`` on other owners' blocks; see ``RowTables.adopt``."""
    if set(blocks) != set(tables):
        raise IntegrityError(f"row {index} adopts blocks of {sorted(blocks)}, the groups are {sorted(tables)}")
    counts = {}
    for name, table in tables.items():
        size = table.pool.block_size
        counts[name] = blocks_spanning(length, size)
        visible = table.spec.first_visible(length) // size
        needed = blocks[name][visible : counts[name]]
        if len(blocks[name]) < counts[name] or SCRATCH_BLOCK in needed:
            raise IntegrityError(f"row {index} adopts {length} positions without {name} blocks for all it would see")
    adopted: list[BlockTable] = []
    try:
        for name, table in tables.items():
            table.adopt(index, blocks[name][: counts[name]])
            adopted.append(table)
    except IntegrityError:
        for table in adopted:
            table.shrink(index, 0)
        raise


def share_blocks(tables: Mapping[str, BlockTable], index: int, length: int) -> dict[str, tuple[int, ...]]:
    """Retain the blocks of the first ``length`` positions; see ``RowTables.share``."""
    shared: dict[str, tuple[int, ...]] = {}
    for name, table in tables.items():
        count = blocks_spanning(length, table.pool.block_size)
        if len(table.blocks[index]) < count:
            raise IntegrityError(f"row {index} shares {length} positions but has fewer {name} blocks")
        shared[name] = tuple(table.blocks[index][:count])
    for name, table in tables.items():
        table.pool.retain(shared[name][table.freed[index] :])
    return shared


def copy_on_write(tables: Mapping[str, BlockTable], store: KVStore | None, index: int, position: int) -> None:
    """Make every block from ``position`` on the row's own; see ``RowTables.make_writable``."""
    copies: list[tuple[BlockTable, int, int]] = []
    try:
        for table in tables.values():
            last: int | None = None
            for place in table.shared_from(index, position // table.pool.block_size):
                last = table.pool.allocate(1, last)[0]
                copies.append((table, place, last))
    except OutOfBlocks:
        for table, _, block in copies:
            table.pool.release([block])
        raise
    for table, place, block in copies:
        if store is not None:
            store.copy_block(table.spec.name, table.blocks[index][place], block)
        table.replace(index, place, block)
    for table in tables.values():
        table.read_only[index] = min(table.read_only[index], position // table.pool.block_size)
