"""The prefix cache that keeps nothing. It stands for the port until a real one is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import IntegrityError
from ..core.ports import CachedPrefix
from ..core.request import Request


class NoCache:
    """A :class:`~paceline.core.ports.CacheService` without memory: every lookup misses, no request is kept."""

    def keeps(self, request: Request) -> bool:
        """Always no: rows need no committed record and publish nothing."""
        return False

    def acquire(self, request: Request, namespace: str, prompt: Sequence[int]) -> CachedPrefix | None:
        """Always a miss."""
        return None

    def publish(self, request: Request, namespace: str, tokens: Sequence[int], prefix: CachedPrefix) -> None:
        """Refuses, and so takes no ownership: the block references stay the caller's."""
        raise IntegrityError(f"request {request.id!r} published a prefix although no request is kept")
