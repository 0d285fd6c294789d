"""Which draws of a verified window a row keeps: the host form of acceptance, one draw at a time (spec 8.1 to 8.3)."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet


class Acceptance:
    """Outcome of comparing the target's draws with a row's proposals.

    ``remaining`` is the row's token budget (>= 1). Feed draws in window order by :meth:`accept` until ``done``.
    """

    __slots__ = (
        "_eos_ids",
        "_remaining",
        "accepted",
        "correction",
        "done",
        "emitted",
        "end_id",
        "grammar_done",
        "position",
        "proposals",
        "saw_eos",
    )

    def __init__(self, proposals: Sequence[int], remaining: int, eos_ids: AbstractSet[int]) -> None:
        if remaining < 1:
            raise ValueError(f"remaining must be at least 1, not {remaining}")
        self.proposals = tuple(proposals)
        self._remaining = remaining
        self._eos_ids = eos_ids
        self.position = 0
        self.emitted: list[int] = []
        self.accepted = 0
        self.correction: int | None = None
        self.saw_eos = False
        self.end_id: int | None = None
        self.grammar_done = False
        self.done = False

    def accept(self, token: int, grammar_done: bool = False) -> None:
        """Use the draw at ``position``. ``grammar_done``: the row's grammar ended with this content token."""
        if self.done:
            raise ValueError("acceptance is done: nothing more may be drawn")
        place = self.position
        self.position += 1
        if token in self._eos_ids:
            self.saw_eos = self.done = True
            self.end_id = token
            return
        self.emitted.append(token)
        if place < len(self.proposals) and self.proposals[place] == token:
            self.accepted += 1
        else:
            self.correction = token
            self.done = True
        if grammar_done:
            self.grammar_done = self.done = True
        elif len(self.emitted) >= self._remaining:
            self.done = True
