"""Seams between rooms, as protocols: who receives tokens, who hosts the rows, who keeps prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .request import Request
from .row import Finished, Row

if TYPE_CHECKING:
    from .costs import CostTable


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


@dataclass(frozen=True)
class GateRow:
    """One row as the gate sees it at a decision. ``index`` names its evidence, ``cap`` is its largest depth now,
    ``remaining`` its token budget, ``context`` the inputs in its state.

    ``match``: what the row's own proposals rest on, as ``Draft.matches`` has it (0 = not known). ``spanned``: the row's
    proposals come from a started span, so it gets depth 0 and counts as one position (spec 11.5).
    """

    index: int
    cap: int
    remaining: int
    context: int
    match: int = 0
    spanned: bool = False


@dataclass(frozen=True)
class Evidence:
    """What a round showed of one row's drafter: of ``drafted`` proposals the first ``accepted`` were right, the next
    one (if any) was wrong, the rest were not tested (spec 11.3). ``match`` as in :class:`GateRow`."""

    index: int
    drafted: int
    accepted: int
    match: int = 0


class Gate(Protocol):
    """Chooses each row's depth (spec 11.1). Host only, deterministic, reads no clock."""

    @property
    def probing(self) -> bool:
        """Whether the last decision was a probe."""
        ...

    def join(self, index: int) -> None:
        """A row joined the group: its evidence starts from the group's (spec 11.2)."""
        ...

    def leave(self, index: int) -> None:
        """The row is gone; its evidence is forgotten. Idempotent."""
        ...

    def next(self, rows: Sequence[GateRow]) -> list[int]: ...

    def rates(self, index: int, match: int = 0) -> Sequence[float]:
        """The row's rates of acceptance by place in the window, behind a match of ``match`` tokens (0 = not known)."""
        ...

    def observe(self, entries: Sequence[Evidence]) -> None: ...

    def correct(self, costs: CostTable) -> None:
        """Decide with these costs from now on."""
        ...

    def reset(self) -> None:
        """Restore the fresh state of rows and group."""
        ...
