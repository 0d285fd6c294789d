"""Row tables: the columns of :mod:`.columns` plus each row's blocks in every block group, which move together.

It knows rows by index and blocks by number; what is stored in them and what a round does is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from ..core.batch import ForwardBatch
from ..core.errors import IntegrityError, OutOfBlocks
from ..core.transaction import release_all
from .batch import Layout, build_forward_batch
from .block_table import BlockTable
from .columns import RowColumns
from .device_batch import DeviceLayout, build_device_batch
from .groups import BlockGroupSpec, blocks_spanning
from .integrity import check_tables
from .pool import SCRATCH_BLOCK, BlockPool
from .sharing import adopt_blocks, copy_on_write, share_blocks
from .store import KVStore


class RowTables(RowColumns):
    """Columns and block tables of up to ``max_rows`` rows of at most ``max_model_len`` positions.

    ``pools``: group name -> pool (groups may share one); all have the same block size, so that logical block numbers
    mean the same positions in every group. ``store`` is needed for copy-on-write only. All methods that take blocks
    do so in every group or in none.
    """

    def __init__(
        self,
        max_rows: int,
        max_model_len: int,
        groups: Sequence[BlockGroupSpec],
        pools: Mapping[str, BlockPool],
        store: KVStore | None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(max_rows, max_model_len, device)
        sizes = {pools[group.name].block_size for group in groups}
        if len(sizes) != 1:
            raise ValueError(f"the pools of all block groups need one common block size, not {sorted(sizes)}")
        self.block_size = sizes.pop()
        self.groups = tuple(groups)
        self.pools = {group.name: pools[group.name] for group in groups}
        self.store = store
        # one column more than positions need: it stays scratch, for positions that may not be kept
        self.table_width = blocks_spanning(max_model_len, self.block_size) + 1
        shared = self._device_is_host()
        self._tables = {
            group.name: BlockTable(group, pools[group.name], max_rows, self.table_width, self.device, shared)
            for group in groups
        }

    # -- reading ----------------------------------------------------------------------------------------------

    def blocks(self, index: int, group: str) -> list[int]:
        """Block ids of a row in logical order; entries freed behind a window are the scratch block."""
        return list(self._tables[group].blocks[index])

    def covered(self, index: int) -> int:
        """Positions for which the row has blocks in every group."""
        return min(len(table.blocks[index]) for table in self._tables.values()) * self.block_size

    def holds_blocks(self, index: int) -> bool:
        """Whether the row has a table entry in any group."""
        return any(table.blocks[index] for table in self._tables.values())

    def freed_behind(self, index: int, group: str) -> int:
        """Leading blocks of the row that were given back (sliding groups)."""
        return self._tables[group].freed[index]

    def block_table(self, group: str) -> torch.Tensor:
        """Block tables [R, width] int64 on the device, padded with the scratch block, in step with the host."""
        return self._tables[group].device()

    def refresh(self) -> None:
        """Bring the block tables on the device up to date. Captured rounds read them without asking the host."""
        for table in self._tables.values():
            table.device()

    def blocks_for(self, tokens: int, span: int | None = None) -> dict[str, int]:
        """Blocks per group that a row of ``tokens`` positions needs at once.

        ``span``: most positions a sliding group holds at a time (window, depth and prefill chunk); without it sliding
        groups are counted like full ones.
        """
        return {group.name: group.blocks_for(tokens, self.block_size, span) for group in self.groups}

    def fits_alone(self, tokens: int, span: int | None = None) -> bool:
        """Whether a row of ``tokens`` positions could run if it had the context and all pools to itself (spec 18.6)."""
        if tokens > self.max_model_len:
            return False
        needs = self.blocks_for(tokens, span)
        return all(
            pool.usable_blocks >= sum(needs[name] for name, other in self.pools.items() if other is pool)
            for pool in self.pools.values()
        )

    # -- taking and giving back blocks ------------------------------------------------------------------------

    def reserve(self, index: int, upto: int, skip: Mapping[str, int] | None = None, *, sliding: bool = True) -> None:
        """Take blocks for all positions below ``upto`` that have none yet, in every group.

        ``skip``: for a row without blocks, how many leading blocks per (sliding) group to leave scratch.
        ``sliding=False`` leaves sliding groups as they are: they take blocks step by step. Raises
        :class:`OutOfBlocks`, leaving the row as it was.
        """
        self._require(index)
        if upto > self.max_model_len:
            raise IntegrityError(f"row {index} reserves {upto} positions, the context holds {self.max_model_len}")
        count = -(-upto // self.block_size)
        grown: list[tuple[BlockTable, int]] = []
        try:
            for name, table in self._tables.items():
                before = len(table.blocks[index])
                if before < count and (sliding or table.spec.window is None):
                    table.grow(index, count, skip.get(name, 0) if skip else 0)
                    grown.append((table, before))
        except OutOfBlocks:
            for table, before in grown:
                table.shrink(index, before)
            raise

    def trim(self, index: int, length: int) -> None:
        """Roll back to ``length`` positions: release every block that lies wholly at or past it.

        Raises :class:`IntegrityError`, changing nothing, where a sliding group has already freed positions that a
        query at ``length`` would see.
        """
        self._require(index)
        for table in self._tables.values():
            if table.freed[index] * self.block_size > table.spec.first_visible(length):
                raise IntegrityError(
                    f"row {index} rolls back to {length}, but {table.spec.name} freed "
                    f"{table.freed[index] * self.block_size} positions and its window is {table.spec.window}"
                )
        count = blocks_spanning(length, self.block_size)
        for table in self._tables.values():
            table.shrink(index, count)

    @property
    def largest_window(self) -> int | None:
        """The widest window of the sliding groups; ``None`` if there are none."""
        return max((group.window for group in self.groups if group.window is not None), default=None)

    def free_behind(self, index: int, length: int, keep: int) -> None:
        """Release the blocks of sliding groups that lie wholly before ``length - keep``; scratch takes their place.

        ``keep`` >= every window: the window plus how far a rollback below ``length`` may go.
        """
        self._require(index)
        for table in self._tables.values():
            window = table.spec.window
            if window is None:
                continue
            if keep < window:
                raise IntegrityError(f"{table.spec.name} keeps {keep} positions, fewer than its window of {window}")
            table.free_front(index, max(0, length - keep) // self.block_size)

    def release(self, index: int, clear: bool = False) -> None:
        """Release all blocks of the row, once. ``clear``: first write zeros to those nobody else holds and to scratch,
        for a row whose values were not finite (a masked NaN still spoils a sum)."""
        self._require(index)
        if clear and self.store is not None:
            for name, table in self._tables.items():
                own = [block for block in table.held(index) if table.pool.ref_count(block) == 1]
                self.store.clear_blocks(name, [SCRATCH_BLOCK, *own])
        release_all(partial(table.shrink, index, 0) for table in self._tables.values())

    def release_index(self, index: int) -> None:
        """Give the index back; the row must hold no blocks. See :meth:`RowColumns.release_index`."""
        self._require(index)
        for table in self._tables.values():
            if table.blocks[index]:
                raise IntegrityError(f"row index {index} is given back while it holds {table.spec.name} blocks")
        super().release_index(index)

    # -- sharing ----------------------------------------------------------------------------------------------

    def adopt(self, index: int, blocks: Mapping[str, Sequence[int]], length: int) -> None:
        """Start a row without blocks on a shared prefix of ``length`` positions: retain its blocks, read-only.

        ``blocks``: for every group the ids in logical order, enough for ``length``, scratch where a sliding group has
        freed them. Call :meth:`make_writable` before writing inside the last one. Changes nothing if it raises.
        """
        self._require(index)
        adopt_blocks(self._tables, index, blocks, length)

    def share(self, index: int, length: int) -> dict[str, tuple[int, ...]]:
        """Retain the blocks of the row's first ``length`` positions for somebody else, in every group.

        Returns what :meth:`adopt` takes; give it back by :meth:`unshare`, once. The row stays their writer at and
        past ``length`` (spec 3.7).
        """
        self._require(index)
        return share_blocks(self._tables, index, length)

    def unshare(self, blocks: Mapping[str, Sequence[int]]) -> None:
        """Drop the references that :meth:`share` took; every group is attempted."""
        release_all(
            partial(table.pool.release, [block for block in blocks[name] if block != SCRATCH_BLOCK])
            for name, table in self._tables.items()
        )

    def make_writable(self, index: int, position: int, groups: Sequence[str] | None = None) -> None:
        """Before the row writes at ``position`` or later: give it copies of the blocks from there on that it shares.

        ``groups``: only in these block groups (default: all). Raises :class:`OutOfBlocks`, leaving the row as it was.
        """
        self._require(index)
        copy_on_write(self._chosen(groups), self.store, index, position)

    # -- forwards and checks ----------------------------------------------------------------------------------

    def forward_batch(
        self,
        indices: Sequence[int],
        tokens: Sequence[Sequence[int]],
        contexts: Sequence[int],
        limits: Sequence[int],
        live: Sequence[bool] | None = None,
        groups: Sequence[str] | None = None,
    ) -> ForwardBatch:
        """Lay out one forward: row ``indices[b]`` runs ``tokens[b]`` at positions ``contexts[b]`` ...

        Positions at or past ``limits[b]``, and rows with ``live[b]`` false (default: all live), write to scratch
        slots. ``groups``: the block groups that the forward reads and writes (default: all). Raises
        :class:`IntegrityError` if a kept position has no block that the row may write.
        """
        for index in indices:
            self._require(index)
        layout = Layout(indices, tokens, contexts, limits, live)
        return build_forward_batch(self._chosen(groups), layout, self.block_size, self.device)

    def device_batch(
        self, index: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, longest: int | None = None
    ) -> ForwardBatch:
        """Lay out a forward of windows from the columns alone: row ``index[b]`` runs the first ``counts[b]`` of
        ``tokens`` [B, W] behind its ``length``; what stands past the count is padding and writes to scratch, as do
        rows that are not live and positions at or past the row's ``limit``.

        ``longest``: bound of the positions any row reaches (default: what the tables can hold; on the CPU as many as
        the rows have). No value is read from another device. Blocks must be reserved by the caller.
        """
        return build_device_batch(self, self._tables, DeviceLayout(index, tokens, counts), longest)

    def _chosen(self, groups: Sequence[str] | None) -> Mapping[str, BlockTable]:
        return self._tables if groups is None else {name: self._tables[name] for name in groups}

    def check_integrity(self, external: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """Raise :class:`IntegrityError` unless indices, tables, device copies and pools agree.

        ``external``: group -> block -> references held outside the tables (a prefix cache).
        """
        self._check_indices()
        check_tables(self._tables.values(), self._in_use, external or {})
