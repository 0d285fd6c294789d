"""Seams between rooms, as protocols: who receives tokens, who hosts the rows, who keeps prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .request import Request
from .row import Finished, Row


class Consumer(Protocol):
    """Receives one request's tokens on the engine thread. What it raises ends its own request, no other."""

    def take(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        """Take a burst with the meaning of token-by-token delivery; return how many tokens were taken.

        Fewer than ``len(tokens)`` means that the consumer stopped after that many. A stop exactly at the last token
        sets ``row.stopped``. An exception may carry an attribute ``taken``: the tokens taken before it (default 0).
        """
        ...

    def finish(self, row: Row | None, finished: Finished) -> None:
        """The request ended; called exactly once. ``row`` is ``None`` if it never became a row."""
        ...


class Host(Protocol):
    """What a group uses of the scheduler (spec 3.4)."""

    @property
    def rows(self) -> Sequence[Row]: ...

    def join(self, row: Row) -> None: ...

    def filter_rows(self, keep: Sequence[bool]) -> None: ...

    def publish(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int: ...

    def finish(self, row: Row, finished: Finished) -> None: ...

    def reject(self, row: Row, error: BaseException) -> None: ...

    def make_room(self) -> bool:
        """Preempt the newest row so that older ones can go on; false if no other row is left to give way."""
        ...


#: Name of the drafter's attachment in a cached prefix.
DRAFTER = "drafter"


@dataclass(frozen=True)
class CachedPrefix:
    """A usable prefix: ``length`` tokens, block ids per block group in logical order, attachments by name."""

    length: int
    blocks: dict[str, tuple[int, ...]]
    attachments: dict[str, Any] = field(default_factory=dict)


class CacheService(Protocol):
    """Port of the prefix cache (spec 14.2). ``publish`` takes ownership of the block references it is given."""

    def keeps(self, request: Request) -> bool: ...

    def acquire(self, request: Request, namespace: str, prompt: Sequence[int]) -> CachedPrefix | None: ...

    def publish(self, request: Request, namespace: str, tokens: Sequence[int], prefix: CachedPrefix) -> None: ...

    def evict(self) -> bool:
        """Give up something that only the cache holds, so that blocks become free; false if there is nothing."""
        ...


class Gate(Protocol):
    """Chooses each row's depth (spec 11.1). Host only, deterministic, reads no clock."""

    def next(self, rows: Sequence[Row], caps: Sequence[int]) -> list[int]: ...

    def observe(self, entries: Sequence[tuple[Row, int, int]]) -> None: ...

    def reset(self) -> None: ...
