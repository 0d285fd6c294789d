"""Whether a row can be taken in now: a free index and enough blocks (spec 18.3). Decides nothing about order."""

from __future__ import annotations

from collections.abc import Mapping

from ..cache.family import FamilyCache
from ..core.request import Request
from .preemption import PreemptedRow
from .state import EngineParts

#: Share of the pool that admission leaves free for the growth of running rows.
WATERMARK = 0.01


class Capacity:
    """Looks at the pools and makes room where only the cache stands in the way. ``running``: rows that hold blocks."""

    def __init__(self, parts: EngineParts, families: FamilyCache) -> None:
        self._parts = parts
        self._families = families

    @property
    def usage(self) -> float:
        """Share of the KV blocks in use, in the fullest group; may be read from any thread."""
        pools = self._parts.tables.pools.values()
        return max((1.0 - pool.free_blocks / (pool.num_blocks - 1) for pool in pools), default=0.0)

    def can_start(self, request: Request, running: int) -> bool:
        """Room for a new row: its prompt and one round of its greatest depth, less what it shares with its family."""
        prompt = len(request.prompt_ids)
        first = prompt + min(1 + request.draft_cap, request.max_tokens)
        return self._can_take(first, request, running, adopts=True)

    def can_resume(self, preempted: PreemptedRow, running: int) -> bool:
        """Room for a preempted row, which takes all its blocks anew."""
        return self._can_take(preempted.blocks_wanted, preempted.row.request, running, adopts=False)

    def _can_take(self, positions: int, request: Request, running: int, *, adopts: bool) -> bool:
        """Prefixes that only the cache holds give way; that of the request itself only if it could not start
        otherwise."""
        if not self._parts.tables.free_indices:
            return False
        while not self._fits(positions, self._families.shared_blocks(request) if adopts else {}, running):
            if not self._families.evict(keep=request if adopts else None):
                break
        else:
            return True
        return not running and adopts and self._families.evict() and self._fits(positions, {}, running)

    def _fits(self, positions: int, shared: Mapping[str, int], running: int) -> bool:
        tables = self._parts.tables
        for group, blocks in tables.blocks_for(positions, self._parts.span).items():
            pool = tables.pools[group]
            spare = int(WATERMARK * pool.num_blocks) if running else 0
            if pool.free_blocks < blocks - shared.get(group, 0) + spare:
                return False
        return True
