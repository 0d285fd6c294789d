"""Reference-counted KV blocks of one pool, handed out so that a row's blocks lie one after another where possible.

It knows block ids only: no rows, no tensors, no contents.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ..core.errors import IntegrityError, OutOfBlocks

#: The block that takes writes nobody may keep. Never handed out, never counted.
SCRATCH_BLOCK = 0

#: Below this share of free blocks a new row takes the start of a free run: room to grow would be of no use.
_CROWDED = 8


class BlockPool:
    """Blocks ``1 .. num_blocks - 1`` of ``block_size`` positions each; block 0 is the scratch block.

    Free blocks are kept as maximal runs, found by either end in constant time, the longest through a heap whose
    entries may be out of date (a run that shrank from its front is corrected when it comes up). Allocating or
    releasing a block costs no walk over the pool.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a block pool needs at least 2 blocks (one is scratch), not {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._free = 0
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._add_run(1, num_blocks - 1)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return self._free

    @property
    def usable_blocks(self) -> int:
        """Blocks that can ever be allocated: all but scratch."""
        return self.num_blocks - 1

    def ref_count(self, block: int) -> int:
        """References held on ``block``; 0 = free (or scratch)."""
        return self._refs[block]

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take ``count`` free blocks, each with one reference, in the order in which a row should use them.

        They follow block ``after`` directly as far as those are free. The rest, and a new row's blocks, come from the
        longest free run: from its middle, so that the row before it and this one both have room to grow, or from its
        start where nobody grows into it or the pool is nearly full. Raises :class:`OutOfBlocks`, changing nothing.
        """
        if count > self._free:
            raise OutOfBlocks(count, self._free)
        taken: list[int] = []
        if after is not None and count > 0 and after + 1 in self._end_of:
            self._take(taken, after + 1, min(count, self._end_of[after + 1] - after))
        while len(taken) < count:
            self._place(taken, count - len(taken))
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block. A free or unknown block raises :class:`IntegrityError`, changing nothing."""
        for block in blocks:
            if not 0 < block < self.num_blocks or not self._refs[block]:
                raise IntegrityError(f"block {block} is retained but nobody holds it")
        for block in blocks:
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block; blocks without any are free again.

        A block released more often than it is held raises :class:`IntegrityError`, changing nothing.
        """
        refs = self._refs
        freed: list[int] = []
        for done, block in enumerate(blocks):
            if not 0 < block < self.num_blocks or not refs[block]:
                for earlier in blocks[:done]:
                    refs[earlier] += 1
                raise IntegrityError(f"block {block} is released but nobody holds it")
            refs[block] -= 1
            if not refs[block]:
                freed.append(block)
        for start, end in _runs(freed):
            self._add_run(start, end)

    def check_integrity(self, references: Mapping[int, int]) -> None:
        """Raise :class:`IntegrityError` unless every block has exactly the references given (block -> count, absent
        = 0) and the free runs are exactly the unreferenced blocks, merged."""
        for block, count in references.items():
            if not 0 < block < self.num_blocks and count:
                raise IntegrityError(f"block {block} is referenced but is scratch or outside the pool")
        for block, count in enumerate(self._refs):
            if count != references.get(block, 0):
                raise IntegrityError(f"block {block} counts {count} references, {references.get(block, 0)} are held")
        self._check_runs()

    def _check_runs(self) -> None:
        expected = list(_runs([block for block in range(1, self.num_blocks) if not self._refs[block]]))
        if sorted(self._end_of.items()) != expected:
            raise IntegrityError(f"free runs {sorted(self._end_of.items())} are not the free blocks {expected}")
        if {end: start for start, end in expected} != self._start_of:
            raise IntegrityError("the two ends of the free runs disagree")
        if self._free != sum(end - start + 1 for start, end in expected):
            raise IntegrityError(f"{self._free} free blocks are counted, the free runs hold another number")
        entries: dict[int, int] = {}
        for size, end in self._heap:
            entries[end] = max(-size, entries.get(end, 0))
        for start, end in expected:
            if entries.get(end, 0) < end - start + 1:
                raise IntegrityError(f"the free run {start}..{end} cannot be found by its length")

    def _place(self, taken: list[int], count: int) -> None:
        start, end = self._longest()
        size = end - start + 1
        if size <= count or start == 1 or self._free * _CROWDED < self.num_blocks:
            begin = start
        else:
            begin = start + (size - count) // 2
        self._take(taken, begin, min(count, size), start)

    def _take(self, taken: list[int], begin: int, count: int, run: int | None = None) -> None:
        """Take ``count`` blocks from ``begin`` out of the free run that starts at ``run`` (default: at ``begin``)."""
        start = begin if run is None else run
        end = self._end_of.pop(start)
        last = begin + count - 1
        if last < end:
            self._end_of[last + 1] = end
            self._start_of[end] = last + 1
        else:
            del self._start_of[end]
        if start < begin:
            self._end_of[start] = begin - 1
            self._start_of[begin - 1] = start
            heapq.heappush(self._heap, (start - begin, begin - 1))
        for block in range(begin, last + 1):
            self._refs[block] = 1
        self._free -= count
        taken.extend(range(begin, last + 1))

    def _add_run(self, start: int, end: int) -> None:
        self._free += end - start + 1
        start = self._start_of.pop(start - 1, start)
        follower = self._end_of.pop(end + 1, None)
        if follower is not None:
            end = follower
        self._end_of[start] = end
        self._start_of[end] = start
        if len(self._heap) > 2 * len(self._end_of) + 64:
            self._heap = [(begin - last - 1, last) for begin, last in self._end_of.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (start - end - 1, end))

    def _longest(self) -> tuple[int, int]:
        """First and last block of the longest free run; there must be a free block."""
        heap = self._heap
        while True:
            size, end = heap[0]
            start = self._start_of.get(end)
            if start is None:
                heapq.heappop(heap)
            elif start - end - 1 != size:
                heapq.heapreplace(heap, (start - end - 1, end))
            else:
                return start, end


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs (first, last) of distinct block ids."""
    if not blocks:
        return
    blocks.sort()
    start = blocks[0]
    for block, following in pairwise(blocks):
        if following != block + 1:
            yield start, block
            start = following
    yield start, blocks[-1]
