"""The scheduler: queue, admission, and one turn of work at a time; it hosts the rows of the group (spec 3.4, 18)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..cache.family import FamilyCache
from ..core.errors import Cancelled, RowFailed
from ..core.ports import Consumer
from ..core.request import Request
from ..core.row import Finished, FinishReason, Row
from ..core.stats import EngineStats
from .binder import BoundGroups
from .capacity import Capacity
from .group import SpeculativeGroup
from .preemption import PreemptedRow, RamTier
from .preparation import Preparation
from .state import EngineParts

_LOG = logging.getLogger("paceline.engine")


class Scheduler:
    """Runs on the engine thread only. Each :meth:`step` does at most one prefill forward and one round."""

    def __init__(
        self,
        parts: EngineParts,
        bind: BoundGroups,
        stats: EngineStats,
        ram: RamTier,
        families: FamilyCache,
    ) -> None:
        self._parts = parts
        self._families = families
        self._capacity = Capacity(parts, families)
        self._bind = bind
        self._stats = stats
        self._ram = ram
        self._waiting: deque[Request] = deque()
        self._followers: dict[str, list[Request]] = {}
        self._preempted: deque[PreemptedRow] = deque()
        self._consumers: dict[str, Consumer] = {}
        self._rows: list[Row] = []
        self._group: SpeculativeGroup | None = None
        self._preparation: Preparation | None = None
        self._held = False
        self._ended: list[tuple[Consumer, Row | None, Finished]] = []

    # -- host surface ------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        return self._rows

    def join(self, row: Row) -> None:
        self._rows.append(row)

    def filter_rows(self, keep: Sequence[bool]) -> None:
        self._rows = [row for row, kept in zip(self._rows, keep, strict=True) if kept]

    def publish(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        """Hand a burst to the row's consumer and check its answer (spec 9.1)."""
        taken = self._consumers[row.request.id].take(row, tokens, metadata)
        if not 0 <= taken <= len(tokens):
            raise RowFailed(f"the consumer took {taken} tokens of a burst of {len(tokens)}")
        return taken

    def finish(self, row: Row, finished: Finished) -> None:
        self._end(row.request, row, finished)

    def reject(self, row: Row, error: BaseException) -> None:
        self._end(row.request, row, _rejection(error))

    def make_room(self) -> bool:
        """Preempt the newest row: first one in preparation, then the last that joined (spec 18.3)."""
        given_way: Request | PreemptedRow | None = None
        if self._preparation is not None:
            given_way = self._preparation.preempt_newest()
        if given_way is None and self._group is not None and len(self._rows) > 1:
            self._group.flush()  # whoever ends by it makes room too
            given_way = self._group.preempt(self._rows[-1]) if len(self._rows) > 1 else None
        if given_way is None:
            return False
        if isinstance(given_way, PreemptedRow):
            self._preempted.appendleft(given_way)
        else:
            self._waiting.appendleft(given_way)
        self._stats.preemptions += 1
        self._held = True
        return True

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], consumers: Sequence[Consumer]) -> None:
        """Queue samples of one prompt: the first computes it, the others wait and start on its blocks."""
        for request, consumer in zip(requests, consumers, strict=True):
            self._consumers[request.id] = consumer
            self._families.enter(request)
        first, *others = requests
        self._stats.prompt_tokens += len(first.prompt_ids)
        self._waiting.append(first)
        if others:
            self._followers[first.id] = others

    def refuse(self, requests: Sequence[Request], consumers: Sequence[Consumer], error: BaseException) -> None:
        """End requests that cannot even be queued."""
        for request, consumer in zip(requests, consumers, strict=True):
            self._consumers[request.id] = consumer
            self._end(request, None, _rejection(error))
        self._notify()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._followers or self._preempted or self._rows or self._preparation)

    @property
    def num_running(self) -> int:
        preparation = self._preparation  # read once: other threads ask too
        return len(self._rows) + (len(preparation.rows) if preparation else 0)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return self._capacity.usage

    @property
    def num_waiting(self) -> int:
        following = sum(len(requests) for requests in list(self._followers.values()))
        return len(self._waiting) + len(self._preempted) + following

    @property
    def running_tokens(self) -> int:
        """Target positions the next round may run (spec 18.1)."""
        rows, group = self._rows, self._group
        if not rows or group is None:
            return 0
        caps = [min(row.request.draft_cap, row.remaining) for row in rows]
        deepest, alone = max(caps), len(rows) == 1
        spans = [len(group.spans.proposals(row, deepest, alone=alone)) for row in rows]
        return len(rows) * (1 + max(span or cap for span, cap in zip(spans, caps, strict=True)))

    @property
    def token_weight(self) -> int:
        """Prompt tokens the preparation still stands for (spec 18.2)."""
        return self._preparation.token_weight if self._preparation else 0

    def open_group(self) -> None:
        """Open the group now rather than with the first request: whatever that takes time for is done at start."""
        if self._group is None:
            self._group = self._bind.open(self)

    # -- work --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One loop turn: admit, advance the preparation, run one round, tell consumers what ended."""
        try:
            self._release_followers()
            self._drop_aborted()
            self._admit()
            if self._preparation is not None and self._preparation.advance():
                self._preparation = None
            if self._group is not None and self._rows:
                self._group.advance()
        except Exception as error:
            _LOG.error("the group failed and is closed: %r", error, exc_info=error)
            self._close_group(error)
        finally:
            self._notify()

    def close(self, error: BaseException) -> None:
        """End every request with ``error``; nothing is live afterwards."""
        self._close_group(error)
        while self._preempted:
            self._forget(self._preempted.popleft(), error)
        self._release_followers(always=True)
        while self._waiting:
            self._end(self._waiting.popleft(), None, _rejection(error))
        self._notify()

    def drafter_failure(self) -> str | None:
        """The first failure of the open group's drafter, for health reports."""
        group = self._group
        return group.drafter.failure if group is not None else None

    def _release_followers(self, *, always: bool = False) -> None:
        """Queue the samples whose first has published the prompt they share, or can no longer do so."""
        for leader in list(self._followers):
            requests = self._followers[leader]
            ended = leader not in self._consumers
            if always or ended or any(self._families.holds(request) for request in requests[:1]):
                del self._followers[leader]
                self._waiting.extendleft(reversed(requests))

    def _drop_aborted(self) -> None:
        for request in [request for request in self._waiting if request.abort.aborted]:
            self._waiting.remove(request)
            self._end(request, None, _rejection(Cancelled(request.abort.reason or "")))
        for preempted in [entry for entry in self._preempted if entry.row.request.abort.aborted]:
            self._preempted.remove(preempted)
            self._forget(preempted, Cancelled(preempted.row.request.abort.reason or ""))

    def _forget(self, preempted: PreemptedRow, error: BaseException) -> None:
        self._ram.drop(preempted.snapshot)
        self.reject(preempted.row, error)

    def _admit(self) -> None:
        """Move preempted rows, then waiting requests into the preparation, first come, first served.

        After a preemption nobody is admitted until somebody has ended: the blocks set free are the older rows'.
        """
        if self._held and self._rows:
            return
        while self._preempted and self._capacity.can_resume(self._preempted[0], self.num_running):
            self._resume(self._preempted.popleft())
        while self._waiting and not self._preempted and self._capacity.can_start(self._waiting[0], self.num_running):
            request = self._waiting.popleft()
            row = Row(request, index=-1, tokens=list(request.prompt_ids))
            try:
                self._open_preparation(request).admit(row)
            except Exception as error:
                self.reject(row, error)

    def _resume(self, preempted: PreemptedRow) -> None:
        try:
            self._open_preparation(preempted.row.request).resume(preempted)
            self._ram.drop(preempted.snapshot)
        except Exception as error:
            self._forget(preempted, error)

    def _open_preparation(self, request: Request) -> Preparation:
        wanted = self._bind(request)
        if self._group is None:
            self._group = wanted.open(self)
        if self._group.key != wanted.key:
            raise RowFailed(f"request {request.id} needs group {wanted.key}, but {self._group.key} is open")
        if self._preparation is None:
            self._preparation = self._group.prepare()
        return self._preparation

    def _close_group(self, error: BaseException) -> None:
        preparation, group = self._preparation, self._group
        self._preparation = self._group = None
        if preparation is not None:
            preparation.close(error)
        if group is not None:
            group.close(error)

    def _end(self, request: Request, row: Row | None, finished: Finished) -> None:
        """Record that a request ended, exactly once; consumers hear of it after everything of the row is released."""
        self._held = False
        self._ended.append((self._consumers.pop(request.id), row, finished))
        self._stats.finished[finished.reason] = self._stats.finished.get(finished.reason, 0) + 1
        self._families.leave(request)

    def _notify(self) -> None:
        ended, self._ended = self._ended, []
        for consumer, row, finished in ended:
            try:
                consumer.finish(row, finished)
            except Exception as error:
                _LOG.warning("a consumer failed at the end of its request: %r", error, exc_info=error)


def _rejection(error: BaseException) -> Finished:
    reason: FinishReason = "abort" if isinstance(error, Cancelled) else "error"
    return Finished(reason, error=error)
