"""A row's KV taken to host memory and put back: bit-equal, in fresh blocks, all or nothing."""

from __future__ import annotations

import pytest
import torch
from tests.cache.kit import BLOCK, CONTEXT, GROUPS, POOL_BLOCKS, ROWS, WINDOW

from paceline.cache.pool import BlockPool
from paceline.cache.snapshot import restore_snapshot, snapshot_bytes, take_snapshot
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.errors import IntegrityError, OutOfBlocks


def make_cache(dtype: torch.dtype) -> tuple[RowTables, KVStore]:
    store = KVStore(GROUPS, POOL_BLOCKS, BLOCK, dtype)
    for group in GROUPS:
        for memory in store.tensors(group.name):
            bits = torch.randint(0, 256, (memory.numel() * memory.element_size(),), dtype=torch.uint8)
            memory.copy_(bits.view(dtype).reshape(memory.shape))  # any bit pattern, NaNs included
    pools = {name: BlockPool(count, BLOCK) for name, count in POOL_BLOCKS.items()}
    return RowTables(ROWS, CONTEXT, GROUPS, pools, store), store


def cells(tables: RowTables, store: KVStore, index: int, length: int) -> list[torch.Tensor]:
    """The bytes of every position that the row still has, read block by block."""
    found = []
    for group in GROUPS:
        blocks = tables.blocks(index, group.name)
        first = tables.freed_behind(index, group.name) * BLOCK
        for memory in store.tensors(group.name):
            rows = [memory[blocks[p // BLOCK] * BLOCK + p % BLOCK].clone() for p in range(first, length)]
            found.append(torch.stack(rows).view(torch.uint8))
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 4, 7, 23])
@pytest.mark.parametrize("slide", [False, True])
def test_contents_come_back_bit_equal_in_other_blocks(dtype: torch.dtype, length: int, slide: bool) -> None:
    tables, store = make_cache(dtype)
    index = tables.acquire_index() or 0
    tables.reserve(index, length + 2)
    if slide:
        tables.free_behind(index, length, WINDOW)
    before = cells(tables, store, index, length)
    announced = snapshot_bytes(tables, store, index, length)
    snapshot = take_snapshot(tables, store, index, length)
    assert snapshot.nbytes == announced
    tables.release(index)
    occupied = {name: pool.allocate(2) for name, pool in tables.pools.items()}
    for group in GROUPS:
        for memory in store.tensors(group.name):
            memory.zero_()
    restore_snapshot(tables, store, index, snapshot)
    after = cells(tables, store, index, length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert len(before) == len(after) == 8
    tables.check_integrity({name: dict.fromkeys(blocks, 1) for name, blocks in occupied.items()})


def test_a_snapshot_does_not_follow_the_store() -> None:
    tables, store = make_cache(torch.float32)
    index = tables.acquire_index() or 0
    tables.reserve(index, 5)
    before = [part.clone() for part in cells(tables, store, index, 5)]
    snapshot = take_snapshot(tables, store, index, 5)
    for group in GROUPS:
        for memory in store.tensors(group.name):
            memory.fill_(7)
    tables.release(index)
    restore_snapshot(tables, store, index, snapshot)
    assert all(torch.equal(a, b) for a, b in zip(before, cells(tables, store, index, 5), strict=True))


def test_a_slid_row_comes_back_with_no_more_blocks_than_it_had() -> None:
    tables, store = make_cache(torch.float32)
    index = tables.acquire_index() or 0
    tables.reserve(index, 30)
    tables.free_behind(index, 30, WINDOW)
    free = {name: pool.free_blocks for name, pool in tables.pools.items()}
    snapshot = take_snapshot(tables, store, index, 30)
    tables.release(index)
    spare = tables.pools["sliding"].allocate(tables.pools["sliding"].free_blocks - 2)
    restore_snapshot(tables, store, index, snapshot)
    tables.pools["sliding"].release(spare)
    assert {name: pool.free_blocks for name, pool in tables.pools.items()} == free
    tables.check_integrity()


def test_restoring_without_room_leaves_the_row_without_blocks() -> None:
    tables, store = make_cache(torch.float32)
    index = tables.acquire_index() or 0
    tables.reserve(index, 20)
    snapshot = take_snapshot(tables, store, index, 20)
    tables.release(index)
    rest = tables.pools["draft"].allocate(tables.pools["draft"].free_blocks - 1)
    with pytest.raises(OutOfBlocks):
        restore_snapshot(tables, store, index, snapshot)
    assert not tables.holds_blocks(index)
    tables.check_integrity({"draft": dict.fromkeys(rest, 1)})


def test_wrong_uses_are_refused() -> None:
    tables, store = make_cache(torch.float32)
    index = tables.acquire_index() or 0
    tables.reserve(index, 4)
    with pytest.raises(IntegrityError, match="no blocks for the 5 positions"):
        take_snapshot(tables, store, index, 5)
    snapshot = take_snapshot(tables, store, index, 4)
    with pytest.raises(IntegrityError, match="already holds blocks"):
        restore_snapshot(tables, store, index, snapshot)
