"""A small cache to test on, and a world that runs random programs of admissions, rounds, sharing and preemption on it.

The world keeps its own plain model of what every row wrote where, and compares after every operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paceline.cache import snapshot as snapshots
from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.errors import IntegrityError, OutOfBlocks

BLOCK, ROWS, CONTEXT, WINDOW, DEPTH = 4, 4, 40, 6, 4
GROUPS = (
    BlockGroupSpec("full", (LayerKV(0, 1, 3, 2), LayerKV(2, 2, 1, 1))),
    BlockGroupSpec("sliding", (LayerKV(1, 1, 2, 2),), window=WINDOW),
    BlockGroupSpec("draft", (LayerKV(3, 1, 1, 1),)),
)
POOL_BLOCKS = {"full": 21, "sliding": 13, "draft": 19}


class SeparateTables(RowTables):
    """Row tables whose device memory is not the host's, as on an accelerator."""

    def _device_is_host(self) -> bool:
        return False


@dataclass
class Parts:
    """Classes and functions that a world is made of; a broken variant replaces one."""

    pool: type[BlockPool] = BlockPool
    store: type[KVStore] = KVStore
    tables: type[RowTables] = RowTables
    take: Callable[..., snapshots.RowSnapshot] = snapshots.take_snapshot
    restore: Callable[..., None] = snapshots.restore_snapshot


@dataclass
class Live:
    """The model of one row: the mark written at each kept position, the length below which it may not overwrite, and
    ``floor``, the length below which it may not roll back because of what a sliding group freed."""

    index: int
    marks: list[float] = field(default_factory=list)
    published: int = 0
    floor: int = 1

    @property
    def length(self) -> int:
        return len(self.marks)


@dataclass
class Published:
    """A prefix that somebody outside the rows holds."""

    blocks: Mapping[str, Sequence[int]]
    marks: list[float]
    floor: int


class World:
    """Runs operations on the cache under test and on the model, and compares them after each."""

    def __init__(self, parts: Parts | None = None) -> None:
        self.parts = parts or Parts()
        self.pools = {name: self.parts.pool(count, BLOCK) for name, count in POOL_BLOCKS.items()}
        self.store = self.parts.store(GROUPS, POOL_BLOCKS, BLOCK, torch.float64)
        self.tables = self.parts.tables(ROWS, CONTEXT, GROUPS, self.pools, self.store)
        self.rows: list[Live] = []
        self.published: list[Published] = []
        self.parked: list[tuple[Live, snapshots.RowSnapshot]] = []
        self.next_mark = 1.0

    # -- operations: each takes three small numbers and does what they allow --------------------------------------

    def admit(self, a: int, b: int, c: int) -> None:
        """A new row whose prompt is prefilled in one go."""
        index = self._acquire()
        if index is None:
            return
        row = Live(index)
        if self._transactional(self.tables.reserve, index, 1 + a % 20):
            self.rows.append(row)
            self._write(row, 1 + a % 20, 1 + a % 20)
        else:
            self._leave(row)

    def step(self, a: int, b: int, c: int) -> None:
        """One round of a row: a window of 1 + depth inputs of which the first 1 + accepted are kept."""
        if not self.rows:
            return
        row = self.rows[a % len(self.rows)]
        window = min(1 + b % (DEPTH + 1), CONTEXT - row.length)
        if window and self._transactional(self.tables.reserve, row.index, row.length + window):
            self._write(row, window, 1 + c % window)

    def rollback(self, a: int, b: int, c: int) -> None:
        """Trim a row by up to the depth that sliding groups allow for; a shared tail is copied first."""
        if not self.rows:
            return
        row = self.rows[a % len(self.rows)]
        length = max(row.length - b % (DEPTH + 1), row.floor)
        if length < row.published:
            if not self._transactional(self.tables.make_writable, row.index, length):
                return
            row.published = length
        self.tables.trim(row.index, length)
        del row.marks[length:]

    def publish(self, a: int, b: int, c: int) -> None:
        if not self.rows:
            return
        row = self.rows[a % len(self.rows)]
        self.published.append(Published(self.tables.share(row.index, row.length), list(row.marks), row.floor))
        row.published = row.length

    def resume(self, a: int, b: int, c: int) -> None:
        """A new row on a published prefix."""
        if not self.published:
            return
        prefix = self.published[a % len(self.published)]
        index = self._acquire()
        if index is None:
            return
        length = len(prefix.marks)
        self.tables.adopt(index, prefix.blocks, length)
        row = Live(index, list(prefix.marks), length, prefix.floor)
        if self._transactional(self.tables.make_writable, index, length):
            self.rows.append(row)
        else:
            self._leave(row)

    def forget(self, a: int, b: int, c: int) -> None:
        if self.published:
            self.tables.unshare(self.published.pop(a % len(self.published)).blocks)

    def leave(self, a: int, b: int, c: int) -> None:
        if self.rows:
            self._leave(self.rows.pop(a % len(self.rows)))

    def preempt(self, a: int, b: int, c: int) -> None:
        """Move a row's state to host memory and give its blocks and index back."""
        if not self.rows:
            return
        row = self.rows.pop(a % len(self.rows))
        expected = snapshots.snapshot_bytes(self.tables, self.store, row.index, row.length)
        snapshot = self.parts.take(self.tables, self.store, row.index, row.length)
        assert snapshot.nbytes == expected
        self._leave(row)
        self.parked.append((row, snapshot))

    def restore(self, a: int, b: int, c: int) -> None:
        if not self.parked:
            return
        place = a % len(self.parked)
        row, snapshot = self.parked[place]
        index = self._acquire()
        if index is None:
            return
        if self._transactional(self.parts.restore, self.tables, self.store, index, snapshot):
            self.rows.append(Live(index, row.marks, floor=row.floor))
            del self.parked[place]
        else:
            self._leave(Live(index))

    def overreach(self, a: int, b: int, c: int) -> None:
        """Ask for as much as the context holds: all or nothing."""
        if self.rows:
            row = self.rows[a % len(self.rows)]
            if self._transactional(self.tables.reserve, row.index, CONTEXT):
                self.tables.trim(row.index, row.length)

    def misuse(self, a: int, b: int, c: int) -> None:
        """What must be refused is refused and changes nothing."""
        before = self.fingerprint()
        row = self.rows[a % len(self.rows)] if self.rows else None
        refused: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        free = [index for index in range(ROWS) if index not in {other.index for other in self.rows}]
        refused += [(self.tables.release_index, (index,)) for index in free]
        refused += [(self.tables.release, (index,)) for index in free]
        refused += [(self.tables.reserve, (index, 1)) for index in free]
        for pool in self.pools.values():
            idle = next((block for block in range(1, pool.num_blocks) if not pool.ref_count(block)), 0)
            refused += [(pool.release, ([idle],)), (pool.retain, ([idle],)), (pool.release, ([0],))]
        if row is not None:
            refused += [(self.tables.release_index, (row.index,)), (self.tables.reserve, (row.index, CONTEXT + 1))]
            refused += [(self.tables.free_behind, (row.index, row.length, WINDOW - 1))]
            freed = self.tables.freed_behind(row.index, "sliding") * BLOCK
            if freed:
                refused.append((self.tables.trim, (row.index, freed + WINDOW - 2)))
            block = self.tables.blocks(row.index, "full")[0]
            count = self.pools["full"].ref_count(block)
            refused.append((self.pools["full"].release, ([block] * (count + 1),)))
        for call, arguments in refused:
            try:
                call(*arguments)
            except IntegrityError:
                assert self.fingerprint() == before, f"{call} was refused but changed something"
            else:
                raise AssertionError(f"{call}{arguments} was not refused")

    # -- comparison ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything: bookkeeping, indices, and every cell that a row or a published prefix may read."""
        external: dict[str, Counter[int]] = {group.name: Counter() for group in GROUPS}
        for prefix in self.published:
            for name, blocks in prefix.blocks.items():
                external[name].update(block for block in blocks if block)
        self.tables.check_integrity(external)
        assert sorted(row.index for row in self.rows) == self.tables.indices_in_use
        assert self.tables.free_indices == ROWS - len(self.rows)
        for row in self.rows:
            tables = {group.name: self.tables.block_table(group.name)[row.index].tolist() for group in GROUPS}
            self._check_cells(tables, row.marks)
        for prefix in self.published:
            self._check_cells(prefix.blocks, prefix.marks)

    def finish(self) -> None:
        """Everything leaves: the pools are as at the start."""
        while self.rows:
            self.leave(0, 0, 0)
        while self.published:
            self.forget(0, 0, 0)
        self.check()
        for name, pool in self.pools.items():
            assert pool.free_blocks == POOL_BLOCKS[name] - 1

    def fingerprint(self) -> Any:
        """Everything that an operation which failed must have left alone."""
        tables = [
            (self.tables.blocks(i, g.name), self.tables.freed_behind(i, g.name)) for g in GROUPS for i in range(4)
        ]
        device = [self.tables.block_table(group.name).tolist() for group in GROUPS]
        counts = [[pool.ref_count(block) for block in range(pool.num_blocks)] for pool in self.pools.values()]
        return tables, device, counts, self.tables.indices_in_use, [p.free_blocks for p in self.pools.values()]

    def _check_cells(self, tables: Mapping[str, Sequence[int]], marks: Sequence[float]) -> None:
        for group in GROUPS:
            first = group.first_visible(len(marks))
            slots = [tables[group.name][p // BLOCK] * BLOCK + p % BLOCK for p in range(first, len(marks))]
            for number, memory in enumerate(self.store.tensors(group.name)):
                found = memory[slots].reshape(len(slots), -1)
                wanted = torch.tensor(marks[first:], dtype=torch.float64)[:, None] + number / 16
                assert torch.equal(found, wanted.expand_as(found)), f"{group.name}: a cell within its length changed"

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _acquire(self) -> int | None:
        used = {row.index for row in self.rows}
        index = self.tables.acquire_index()
        if index is None:
            assert len(used) == ROWS
        else:
            assert index not in used, f"index {index} is in use"
            assert index == min(set(range(ROWS)) - used), "not the lowest free index"
        return index

    def _leave(self, row: Live) -> None:
        self.tables.release(row.index)
        self.tables.release_index(row.index)

    def _transactional(self, call: Callable[..., Any], *arguments: Any) -> bool:
        before = self.fingerprint()
        try:
            call(*arguments)
        except OutOfBlocks:
            assert self.fingerprint() == before, f"{call} failed but changed something"
            return False
        return True

    def _write(self, row: Live, window: int, kept: int) -> None:
        """A forward over ``window`` inputs as a model would run it, then commit and free behind the window."""
        marks = [self.next_mark + i for i in range(window)]
        self.next_mark += window
        batch = self.tables.forward_batch([row.index], [[1] * window], [row.length], [CONTEXT])
        for group in GROUPS:
            for number, memory in enumerate(self.store.tensors(group.name)):
                written = torch.tensor(marks, dtype=torch.float64)[:, None, None] + number / 16
                memory[batch.slots[group.name]] = written.expand(window, *memory.shape[1:])
        row.marks += marks[:kept]
        self.tables.free_behind(row.index, row.length, WINDOW + DEPTH)
        row.floor = max(row.floor, row.length - DEPTH)


_COMMON = ("admit", "step", "step", "step", "step", "rollback")
OPERATIONS = (*_COMMON, "publish", "resume", "forget", "leave", "preempt", "restore", "overreach", "misuse")
_numbers = st.integers(0, 23)
programs = st.lists(st.tuples(st.sampled_from(OPERATIONS), _numbers, _numbers, _numbers), min_size=10, max_size=60)


def run_program(program: Sequence[tuple[str, int, int, int]], parts: Parts | None = None) -> None:
    """Run a program, checking after every operation and at the end."""
    world = World(parts)
    world.admit(11, 0, 0)
    world.check()
    for name, *numbers in program:
        getattr(world, name)(*numbers)
        world.check()
    world.finish()


def search(parts: Parts, examples: int = 250) -> None:
    """Run programs until one fails, without looking for a smaller one; its error is raised."""

    @settings(max_examples=examples, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(programs)
    def attempt(program: list[tuple[str, int, int, int]]) -> None:
        run_program(program, parts)

    attempt()
