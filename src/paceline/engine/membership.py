"""Joining and leaving a group: prepared changes of target and membership, releases that are attempted to the last."""

from __future__ import annotations

from collections.abc import Callable

from ..core.row import Row
from .state import EngineParts, RowState


class TargetJoin:
    """Makes a row's target state fit for decoding: blocks for its first window (spec 5.1 a)."""

    def __init__(self, parts: EngineParts, row: Row, window: int) -> None:
        self._parts = parts
        self._row = row
        parts.free_behind_window(row, row.length)
        parts.tables.reserve(row.index, min(row.length + window, row.position_limit))

    def commit(self) -> None:
        self._parts.tables.write_row(self._row)

    def undo(self) -> None:
        self._parts.tables.trim(self._row.index, self._row.length)


class MembershipJoin:
    """Registers a row with its group and host (spec 5.1 c)."""

    def __init__(self, register: Callable[[RowState], None], state: RowState) -> None:
        self._register = register
        self._state = state

    def commit(self) -> None:
        self._register(self._state)

    def undo(self) -> None:
        return None
