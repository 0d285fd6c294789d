"""Batched chunked prefill: packs the next steps of several rows into one forward and reports what completed.

It knows positions and packing; what a step means for target, drafter and consumers is its hooks' business (spec 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.batch import ForwardResult
from ..core.errors import Cancelled
from ..core.row import Row
from .preemption import ReplaySpan
from .prefill_plan import PrefillSpan
from .state import PrefillStep, RowState


@dataclass(eq=False)
class PrefillEntry:
    """One row in prefill: where it stands in its span. ``resumes``: the row was preempted and is being rebuilt; its
    tokens are known, nothing is drawn when it completes."""

    row: Row
    state: RowState
    span: PrefillSpan | ReplaySpan
    position: int
    resumes: bool = False

    def next_step(self) -> PrefillStep:
        return self.span.step_at(self.position)


class PrefillHooks(Protocol):
    """What the prefill engine asks of its owner, in the order of spec 4.1."""

    def open(self, row: Row) -> PrefillEntry: ...

    def forward(self, work: Sequence[tuple[PrefillEntry, PrefillStep]]) -> ForwardResult: ...

    def save(self, entry: PrefillEntry) -> None: ...

    def complete(
        self, entries: Sequence[PrefillEntry], result: ForwardResult | None, places: Sequence[int]
    ) -> None: ...

    def reject(self, entry: PrefillEntry, error: BaseException) -> None: ...


class PrefillEngine:
    """Rows in prefill, first come, first served. Each advance runs at most one forward of at most ``budget`` tokens."""

    def __init__(self, hooks: PrefillHooks, budget: int) -> None:
        self._hooks = hooks
        self._budget = budget
        self._entries: list[PrefillEntry] = []

    @property
    def rows(self) -> list[Row]:
        return [entry.row for entry in self._entries]

    @property
    def token_weight(self) -> int:
        """Uncached prompt tokens still to prefill (spec 18.2)."""
        return sum(entry.span.end - entry.position for entry in self._entries)

    def admit(self, row: Row) -> None:
        self._entries.append(self._hooks.open(row))

    def resume(self, entry: PrefillEntry) -> None:
        """Take in a preempted row that is rebuilt by replay."""
        self._entries.append(entry)

    @property
    def newest(self) -> PrefillEntry | None:
        """The row that came last, if any."""
        return self._entries[-1] if self._entries else None

    def remove(self, entry: PrefillEntry) -> None:
        """Forget a row that its owner has released."""
        self._entries.remove(entry)

    def advance(self) -> bool:
        """Run the next packed forward; true when no row is left in prefill."""
        self._drop_aborted()
        work = self._pack()
        if work:
            self._run(work)
        return not self._entries

    def close(self, error: BaseException) -> None:
        """Reject every row still in prefill."""
        while self._entries:
            self._hooks.reject(self._entries.pop(), error)

    def _drop_aborted(self) -> None:
        for entry in [e for e in self._entries if e.row.request.abort.aborted]:
            self.remove(entry)
            self._hooks.reject(entry, Cancelled(entry.row.request.abort.reason or ""))

    def _pack(self) -> list[tuple[PrefillEntry, PrefillStep]]:
        """Whole steps that fit the budget; steps are never cut to fit, so a row's plan is its own."""
        work: list[tuple[PrefillEntry, PrefillStep]] = []
        room = self._budget
        for entry in self._entries:
            step = entry.next_step()
            if work and step.end - step.start > room:
                break
            work.append((entry, step))
            room -= step.end - step.start
        return work

    def _run(self, work: Sequence[tuple[PrefillEntry, PrefillStep]]) -> None:
        steps = [(entry, step) for entry, step in work if step.end > step.start]
        result: ForwardResult | None = None
        if steps:
            try:
                result = self._hooks.forward(steps)
            except Exception as error:  # cannot be attributed: every row of the forward is lost (spec 4.17)
                for entry, _ in steps:
                    self.remove(entry)
                    self._hooks.reject(entry, error)
                work = [(entry, step) for entry, step in work if step.end == step.start]
        completing: list[PrefillEntry] = []
        places: list[int] = []
        flat = 0
        for entry, step in work:
            flat += step.end - step.start
            entry.position = step.end
            if not entry.resumes:
                entry.row.length = step.end
                entry.state.plan.append(step)
            if step.saves:
                self._hooks.save(entry)
            if step.final:
                completing.append(entry)
                places.append(flat - 1)
                self.remove(entry)
        if completing:
            self._hooks.complete(completing, result, places)
