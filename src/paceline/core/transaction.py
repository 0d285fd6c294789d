"""State changes that apply all or not at all, and releases that are attempted to the last (spec 5.2, 16.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class StateChange(Protocol):
    """A prepared change: exactly one of ``commit`` (must not fail) and ``undo`` is called, once."""

    def commit(self) -> None: ...

    def undo(self) -> None: ...


class NoChange:
    """A state change that changes nothing."""

    def commit(self) -> None:
        return None

    def undo(self) -> None:
        return None


class DamagedState(Exception):
    """A commit failed half-way: shared state can no longer be trusted."""


def apply_state_changes(prepares: Iterable[Callable[[], StateChange]]) -> None:
    """Prepare every change in order, then commit them all in order.

    If a prepare raises, those already prepared are undone in reverse order and the error is re-raised. A commit that
    raises becomes :class:`DamagedState`.
    """
    prepared: list[StateChange] = []
    try:
        for prepare in prepares:
            prepared.append(prepare())
    except BaseException as error:
        try:
            release_all(change.undo for change in reversed(prepared))
        except Exception as second:  # the first error stays primary (spec 16.1)
            error.add_note(f"while undoing: {second!r}")
        raise
    for change in prepared:
        try:
            change.commit()
        except Exception as error:
            raise DamagedState(f"commit of {change!r} failed: {error!r}") from error


def release_all(releases: Iterable[Callable[[], object]]) -> None:
    """Call every release even if some fail, then raise the first failure."""
    first: Exception | None = None
    for release in releases:
        try:
            release()
        except Exception as error:
            if first is None:
                first = error
    if first is not None:
        raise first
