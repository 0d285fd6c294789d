"""A consumer for tests: collects one request's bursts, stops, raises or aborts where told, and notes foul play."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.row import Finished, Row
from ..core.stats import FillStats, SpecStats

#: What ``watch`` is told when the request has ended.
ENDED = sys.maxsize


class ConsumerBroke(RuntimeError):
    """Raised on purpose by a :class:`Collector`; ``taken`` tells the engine how many tokens came before it."""

    def __init__(self, taken: int) -> None:
        super().__init__("the consumer broke on purpose")
        self.taken = taken


@dataclass(frozen=True)
class Behaviour:
    """What a consumer does: ``stop_after`` so many tokens, ``raise_after``, or ``abort_after`` (once it has at least
    so many, at the end of the burst). ``None`` = never. At most one of them is meant to be set."""

    stop_after: int | None = None
    raise_after: int | None = None
    abort_after: int | None = None


@dataclass(eq=False)
class Collector:
    """Implements :class:`paceline.core.ports.Consumer`.

    ``watch(count)`` is called on the engine thread after each burst with the number of tokens taken so far, and at the
    end with :data:`ENDED`. After the end: ``finished``, ``generated``, ``spec`` and ``fill`` as the engine reported
    them; ``text`` (prompt and output) and ``length`` (inputs in the target's state) are the row's own, if it became
    one; ``indices`` are the row indices it was seen with, ``problems`` lists broken promises.
    """

    behaviour: Behaviour = field(default_factory=Behaviour)
    watch: Callable[[int], None] | None = None
    tokens: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    finished: Finished | None = None
    generated: int = 0
    text: tuple[int, ...] | None = None
    length: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    fill: FillStats = field(default_factory=FillStats)
    problems: list[str] = field(default_factory=list)
    indices: set[int] = field(default_factory=set)
    _halted: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def take(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        if self.finished is not None or self._halted:
            self.problems.append(f"tokens {list(tokens)} after the end")
        if not tokens:
            self.problems.append("an empty burst was delivered")
        self.indices.add(row.index)
        limit = self.behaviour.stop_after if self.behaviour.stop_after is not None else self.behaviour.raise_after
        count = len(tokens) if limit is None else min(len(tokens), limit - len(self.tokens))
        self.tokens.extend(tokens[:count])
        self.bursts.append(count)
        if self.watch is not None:
            self.watch(len(self.tokens))
        if limit is not None and len(self.tokens) == limit:
            self._halted = True
            if self.behaviour.raise_after is not None:
                raise ConsumerBroke(count)
            row.stopped = count == len(tokens)
        if self.behaviour.abort_after is not None and len(self.tokens) >= self.behaviour.abort_after:
            self._halted = True
            row.request.abort.abort("the test aborts")
        return count

    def finish(self, row: Row | None, finished: Finished) -> None:
        if self.finished is not None:
            self.problems.append("finish was called twice")
        self.finished = finished
        if row is not None:
            self.generated = row.generated
            self.text, self.length = tuple(row.tokens), row.length
            self.spec, self.fill = copy.deepcopy(row.spec), copy.deepcopy(row.fill)
        if self.watch is not None:
            self.watch(ENDED)
        self._ended.set()

    def wait(self, timeout: float = 60.0) -> Collector:
        """Block until the request has ended; raises ``TimeoutError`` naming how far it came."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"no end after {timeout:g} s and {len(self.tokens)} tokens")
        return self

    def give_up(self) -> None:
        """Stop waiting for a request that could not be submitted."""
        self._ended.set()

    @property
    def reason(self) -> str:
        """Finish reason, or "running"."""
        return "running" if self.finished is None else self.finished.reason
