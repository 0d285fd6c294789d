"""Prompts shared by several samples of one request: the first computes the prefix, the others start on its blocks.

The smallest prefix cache there is: it keeps exactly one prefix per family, as long as a member lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.ports import CachedPrefix
from ..core.request import Request
from .tables import RowTables


@dataclass(eq=False)
class _Entry:
    """A published prefix and the ids of the family's requests that have not ended."""

    prefix: CachedPrefix
    tokens: tuple[int, ...]
    members: set[str]


class FamilyCache:
    """A :class:`~paceline.core.ports.CacheService` for requests with a ``family``; all others miss and are not kept."""

    def __init__(self, tables: RowTables) -> None:
        self._tables = tables
        self._entries: dict[str, _Entry] = {}
        self._members: dict[str, set[str]] = {}

    def enter(self, request: Request) -> None:
        """A member of a family was submitted."""
        if request.family is not None:
            self._members.setdefault(request.family.id, set()).add(request.id)

    def leave(self, request: Request) -> None:
        """A member ended; the prefix goes with the last one. Idempotent."""
        if request.family is None:
            return
        members = self._members.get(request.family.id, set())
        members.discard(request.id)
        if not members:
            self._members.pop(request.family.id, None)
            entry = self._entries.pop(request.family.id, None)
            if entry is not None:
                self._tables.unshare(entry.prefix.blocks)

    def shared_blocks(self, request: Request) -> dict[str, int]:
        """Whole blocks per group that the request would start on instead of taking them."""
        entry = self._entries.get(request.family.id) if request.family is not None else None
        if entry is None:
            return {}
        whole = entry.prefix.length // self._tables.block_size
        return {group: sum(1 for block in blocks[:whole] if block) for group, blocks in entry.prefix.blocks.items()}

    def evict(self, keep: Request | None = None) -> bool:
        """Give up one prefix that holds blocks nobody else does, except that of ``keep``'s family; false if there is
        none. Its family prefills the prompt again."""
        for family, entry in self._entries.items():
            if (keep is None or keep.family is None or keep.family.id != family) and self._frees(entry):
                del self._entries[family]
                self._tables.unshare(entry.prefix.blocks)
                return True
        return False

    def _frees(self, entry: _Entry) -> bool:
        return any(
            block and self._tables.pools[group].ref_count(block) == 1
            for group, blocks in entry.prefix.blocks.items()
            for block in blocks
        )

    def holds(self, request: Request) -> bool:
        """Whether the prefix of the request's family has been published."""
        return request.family is not None and request.family.id in self._entries

    def keeps(self, request: Request) -> bool:
        """Only the first member of a family publishes."""
        return request.family is not None and request.family.leads and not self.holds(request)

    def acquire(self, request: Request, namespace: str, prompt: Sequence[int]) -> CachedPrefix | None:
        """The family's prefix, if it has been published; at most ``len(prompt) - 1`` tokens."""
        entry = self._entries.get(request.family.id) if request.family is not None else None
        if entry is None or entry.tokens != tuple(prompt[: len(entry.tokens)]) or len(entry.tokens) >= len(prompt):
            return None
        return entry.prefix

    def publish(self, request: Request, namespace: str, tokens: Sequence[int], prefix: CachedPrefix) -> None:
        """Keep a family's first prefix; anything later, or as long as the prompt itself, is given back at once."""
        family = request.family
        if (
            family is None
            or len(tokens) >= len(request.prompt_ids)
            or family.id in self._entries
            or request.id not in self._members.get(family.id, ())
        ):
            self._tables.unshare(prefix.blocks)
            return
        self._entries[family.id] = _Entry(prefix, tuple(tokens), self._members[family.id])

    def references(self) -> dict[str, dict[int, int]]:
        """Block references held here, for integrity checks: group -> block -> count."""
        held: dict[str, dict[int, int]] = {}
        for entry in self._entries.values():
            for group, blocks in entry.prefix.blocks.items():
                counts = held.setdefault(group, {})
                for block in blocks:
                    if block:
                        counts[block] = counts.get(block, 0) + 1
        return held
