"""Copied spans of a group's rows (spec 12): who has a session, which span is open, what delivery made of it.

State belongs to the row record, so it survives preemption. It runs no rounds and touches no tensors: the group asks for
proposals, verifies them, and tells what was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..core.round import RowResult
from ..core.row import Row
from ..fill.session import FillSession
from ..fill.source import Span

#: Widest span window beside other rows, if no drafter goes deeper (spec 12.5).
_SHARED_WIDTH = 8


def span_width(depth: int, alone: bool, fill_span: int) -> int:
    """Most span ids one row may propose in a round (spec 12.5). ``depth``: the greatest drafter depth of this round.

    A row that is alone runs a window of ``fill_span`` positions, its pending token among them: kernels take positions
    in steps of 16 or 32. Beside others a span goes no wider than drafts do, so that it does not make all rows pay.
    """
    return max(1, fill_span - 1) if alone else min(max(depth, _SHARED_WIDTH), max(1, fill_span - 1))


@dataclass(eq=False)
class _Follower:
    """One row's session, its open span and how many of its ids the text has repeated."""

    session: FillSession
    span: Span | None = None
    matched: int = 0
    suspended: bool = False

    def walk(self, token: int) -> None:
        """One delivered token: the span's next id, or the end of the span (spec 12.6)."""
        if self.span is not None and token == self.span[self.matched]:
            self.matched += 1
            if self.matched == len(self.span):
                self.settle()
            return
        self.settle()
        self.session.observe(token)

    def settle(self) -> None:
        """Commit the open span, once."""
        if self.span is not None:
            span, self.span = self.span, None
            self.session.commit(span, self.matched)
            self.matched = 0

    def reach(self) -> int:
        """Ids worth verifying now: none before a draw has matched the beginning (spec 12.4)."""
        if self.span is None or not self.matched:
            return 0
        return min(self.session.reach(self.span, self.matched), len(self.span) - self.matched)


class RowSpans:
    """Spans of the rows of one group. Rows without a session cost one dictionary look-up.

    ``fill_span``: positions of the widest window of a row that is alone; 0 = no spans at all.
    """

    def __init__(self, fill_span: int = 32) -> None:
        self._fill_span = fill_span
        self._followers: WeakKeyDictionary[Row, _Follower] = WeakKeyDictionary()

    def open_row(self, row: Row, accepts: bool) -> None:
        """Give a row a session if its request asks for one. ``accepts``: its drafter takes tokens of others."""
        request = row.request
        if accepts and self._fill_span and (request.prediction is not None or request.fill):
            session = FillSession(request.prompt_ids, request.prediction, request.fill)
            row.fill = session.stats
            self._followers[row] = _Follower(session)

    def ask(self, row: Row) -> None:
        """Prefill is complete: ask for a span, if none is open (spec 12.3)."""
        follower = self._followers.get(row)
        if follower is not None and follower.span is None:
            follower.span = follower.session.propose(row.remaining)

    def started(self, row: Row) -> bool:
        """Whether the row's next proposals are a span's."""
        follower = self._followers.get(row)
        return follower is not None and follower.reach() > 0

    def proposals(self, row: Row, depth: int, *, alone: bool) -> list[int]:
        """The next ids of a started span, empty for any other row. ``depth``: the round's greatest drafter depth."""
        follower = self._followers.get(row)
        if follower is None or follower.span is None:
            return []
        return follower.span.ids(follower.matched, self._count(row, follower, depth, alone))

    def expected(self, row: Row, depth: int, *, alone: bool) -> float:
        """Expected number of right ids among :meth:`proposals`; 0 for a row without a started span."""
        follower = self._followers.get(row)
        if follower is None or follower.span is None:
            return 0.0
        count = self._count(row, follower, depth, alone)
        return follower.session.expected(follower.span, follower.matched, count)

    def delivered(self, row: Row, result: RowResult, taken: int, continues: bool) -> None:
        """A round of the row was read and its consumer took ``taken`` tokens; ``row.remaining`` is up to date.

        Counts a span round, walks the tokens along the open span, then asks for a new one, or settles it if the row has
        ended (spec 12.6).
        """
        follower = self._followers.get(row)
        if follower is None:
            return
        if result.source == "span" and follower.span is not None:
            follower.session.verified(follower.span, len(result.proposals), result.accepted)
        for token in result.emitted[:taken]:
            follower.walk(token)
        if continues:
            self.ask(row)
        else:
            follower.settle()

    def suspend(self, row: Row) -> None:
        """The row is preempted: its span is settled, its session waits with the row record."""
        follower = self._followers.get(row)
        if follower is not None:
            follower.settle()
            follower.suspended = True

    def resume(self, row: Row) -> None:
        """A preempted row goes on."""
        follower = self._followers.get(row)
        if follower is not None:
            follower.suspended = False
            self.ask(row)

    def close_row(self, row: Row) -> None:
        """The row is released: settle its span and forget it. Idempotent; the session of a suspended row is kept."""
        follower = self._followers.get(row)
        if follower is not None and not follower.suspended:
            follower.settle()
            del self._followers[row]

    def _count(self, row: Row, follower: _Follower, depth: int, alone: bool) -> int:
        return min(follower.reach(), row.remaining, span_width(depth, alone, self._fill_span))
