"""Random programs on the whole cache (invariants 16 and 33 for blocks, S27, S28, S38), and faults they must find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.cache.kit import Parts, SeparateTables, programs, run_program, search

from paceline.cache.pool import BlockPool
from paceline.cache.snapshot import RowSnapshot, restore_snapshot, take_snapshot
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.errors import IntegrityError, OutOfBlocks


@given(programs)
@settings(max_examples=120)
def test_bookkeeping_and_contents_hold_under_any_program(program: list[tuple[str, int, int, int]]) -> None:
    run_program(program)


@given(programs)
@settings(max_examples=40)
def test_the_same_holds_where_device_memory_is_separate(program: list[tuple[str, int, int, int]]) -> None:
    run_program(program, Parts(tables=SeparateTables))


class LeakingRelease(RowTables):
    """Keeps one group's blocks when a row leaves."""

    def release(self, index: int, clear: bool = False) -> None:
        table = self._tables["draft"]
        table.blocks[index] = []
        table.host[index] = 0
        super().release(index, clear)


class TrimsOneTooMany(RowTables):
    """Rolls back to one position less than asked."""

    def trim(self, index: int, length: int) -> None:
        super().trim(index, length - 1)


class TrimsNothing(RowTables):
    """Rollback silently does nothing and forgets that the blocks stay."""

    def trim(self, index: int, length: int) -> None:
        for table in self._tables.values():
            del table.blocks[index][-(-length // self.block_size) :]


class ReusesIndexEarly(RowTables):
    """Hands the lowest index out again while it is in use."""

    def acquire_index(self) -> int | None:
        index = super().acquire_index()
        if index is not None and index > 0:
            self._free_indices.append(index)
            return 0
        return index


class SharesIndex(RowTables):
    """Frees an index twice, so that two rows get it."""

    def release_index(self, index: int) -> None:
        super().release_index(index)
        self._free_indices.append(index)


class HalfReserves(RowTables):
    """Keeps what the first groups gave when a later one is out of blocks."""

    def reserve(self, index: int, upto: int, skip: Mapping[str, int] | None = None) -> None:
        self._require(index)
        if upto > self.max_model_len:
            raise IntegrityError("too long")
        for name, table in self._tables.items():
            count = -(-upto // self.block_size)
            if len(table.blocks[index]) < count:
                table.grow(index, count, skip.get(name, 0) if skip else 0)


class WritesShared(RowTables):
    """Declares shared blocks writable without copying them."""

    def make_writable(self, index: int, position: int) -> None:
        for table in self._tables.values():
            table.read_only[index] = min(table.read_only[index], position // self.block_size)


class NeverMadeWritable(RowTables):
    """Leaves the tail of an adopted prefix read-only."""

    def make_writable(self, index: int, position: int) -> None:
        return None


class FreesTooMuch(RowTables):
    """Frees one block of the window too."""

    def free_behind(self, index: int, length: int, keep: int) -> None:
        super().free_behind(index, length + self.block_size + 4, keep)


class FreesWithoutPlaceholder(RowTables):
    """Takes freed blocks out of the table, so that logical places shift."""

    def free_behind(self, index: int, length: int, keep: int) -> None:
        super().free_behind(index, length, keep)
        for table in self._tables.values():
            freed = table.freed[index]
            table.blocks[index] = table.blocks[index][freed:]
            table.freed[index] = 0
            table.host[index] = 0
            table.host[index, : len(table.blocks[index])] = table.blocks[index]


class AdoptsWithoutReference(RowTables):
    """Starts a row on a prefix without holding its blocks."""

    def adopt(self, index: int, blocks: Mapping[str, Sequence[int]], length: int) -> None:
        super().adopt(index, blocks, length)
        for table in self._tables.values():
            table.pool.release(table.held(index))


class StaleDevice(SeparateTables):
    """Forgets to bring growth to the device."""

    def reserve(self, index: int, upto: int, skip: Mapping[str, int] | None = None) -> None:
        super().reserve(index, upto, skip)
        for table in self._tables.values():
            table._dirty.clear()


class FreesHeldBlocks(BlockPool):
    """Frees a block at its first release, whoever else holds it."""

    def release(self, blocks: Sequence[int]) -> None:
        super().release(blocks)
        for block in blocks:
            if self.ref_count(block):
                super().release([block] * self.ref_count(block))


class ForgivesDoubleRelease(BlockPool):
    """Ignores the release of a block that nobody holds."""

    def release(self, blocks: Sequence[int]) -> None:
        super().release([block for block in blocks if self.ref_count(block)])


class AllocatesPartly(BlockPool):
    """Takes what is there before it says that it is not enough."""

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        if count > self.free_blocks:
            super().allocate(self.free_blocks)
            raise OutOfBlocks(count, 0)
        return super().allocate(count, after)


class HandsOutScratch(BlockPool):
    """Hands out block 0 when nothing else is left."""

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        if count == self.free_blocks + 1:
            return [*super().allocate(count - 1, after), 0]
        return super().allocate(count, after)


class CopiesNothing(KVStore):
    """Leaves a copied block as it was."""

    def copy_block(self, group: str, src: int, dst: int) -> None:
        return None


class CopiesKeysOnly(KVStore):
    """Forgets the last tensor of a group when it copies a block."""

    def copy_block(self, group: str, src: int, dst: int) -> None:
        kept = self.tensors(group)[-1].clone()
        super().copy_block(group, src, dst)
        self.tensors(group)[-1].copy_(kept)


def takes_one_short(tables: RowTables, store: KVStore, index: int, length: int) -> RowSnapshot:
    """A snapshot whose last position was never copied."""
    snapshot = take_snapshot(tables, store, index, length)
    for copies in snapshot.tensors.values():
        for copy in copies:
            copy[-1:] = 0
    return snapshot


def restores_without_window(tables: RowTables, store: KVStore, index: int, snapshot: RowSnapshot) -> None:
    """Puts a sliding group's cells at the start of the row instead of where they stood."""
    whole = dict.fromkeys(snapshot.first, 0)
    padded = {
        name: [torch.nn.functional.pad(copy, (0, 0, 0, 0, 0, snapshot.first[name])) for copy in copies]
        for name, copies in snapshot.tensors.items()
    }
    restore_snapshot(tables, store, index, RowSnapshot(snapshot.length, whole, padded))


_FAULTS: list[Any] = [
    *(
        Parts(tables=variant)
        for variant in (
            LeakingRelease,
            TrimsOneTooMany,
            TrimsNothing,
            ReusesIndexEarly,
            SharesIndex,
            HalfReserves,
            WritesShared,
            NeverMadeWritable,
            FreesTooMuch,
            FreesWithoutPlaceholder,
            AdoptsWithoutReference,
            StaleDevice,
        )
    ),
    *(Parts(pool=variant) for variant in (FreesHeldBlocks, ForgivesDoubleRelease, AllocatesPartly, HandsOutScratch)),
    *(Parts(store=variant) for variant in (CopiesNothing, CopiesKeysOnly)),
    Parts(take=takes_one_short),
    Parts(restore=restores_without_window),
]


def _fault_name(parts: Parts) -> str:
    sound = Parts()
    changed = next(name for name in vars(sound) if getattr(parts, name) is not getattr(sound, name))
    return str(getattr(parts, changed).__name__)


@pytest.mark.parametrize("fault", _FAULTS, ids=_fault_name)
def test_programs_find_the_fault(fault: Parts) -> None:
    with pytest.raises((AssertionError, IntegrityError)):
        search(fault)
