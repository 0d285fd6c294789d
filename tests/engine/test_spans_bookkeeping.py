"""Bookkeeping of spans over whole lives of rows (invariant 27): every delivered token fed once, every span settled
once, no window before a match, none too wide. A scripted target stands for the rounds: it draws the row's text whatever
is proposed. Broken bookkeeping must be caught.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fill.kit import agreeing, deliver, make_row, plain

import paceline.engine.spans as spans_module
from paceline.core.round import RowResult
from paceline.core.row import Row
from paceline.engine.spans import RowSpans
from paceline.fill.session import FillSession
from paceline.fill.source import Prediction, Span


class Watched(FillSession):
    """A session that notes what it is told."""

    made: list[Watched]

    def __init__(self, prompt: Sequence[int], prediction: Prediction | None, own: bool) -> None:
        super().__init__(prompt, prediction, own)
        self.fed: list[int] = []
        self.proposed: list[Span] = []
        self.committed: list[tuple[Span, int]] = []
        Watched.made.append(self)

    def observe(self, token: int) -> None:
        self.fed.append(token)
        super().observe(token)

    def propose(self, max_tokens: int) -> Span | None:
        span = super().propose(max_tokens)
        if span is not None:
            self.proposed.append(span)
            assert 0 < len(span) <= max_tokens
        return span

    @property
    def open(self) -> Span | None:
        return self.proposed[-1] if len(self.proposed) > len(self.committed) else None

    def commit(self, span: Span, matched: int) -> None:
        self.committed.append((span, matched))
        self.fed.extend(span.ids(0, matched))
        super().commit(span, matched)


@dataclass(frozen=True)
class Script:
    """How a row lives: its text, how many tokens the drafter gets right in its rounds, where the consumer stops, before
    which rounds it is preempted, whether it is alone, the greatest depth."""

    text: tuple[int, ...]
    prediction: tuple[int, ...] | None
    fill: bool
    drafted: tuple[int, ...]
    stops_at: int
    preempted: frozenset[int]
    alone: bool
    depth: int
    splits_tail: bool


@dataclass
class Life:
    """Lives a script through :class:`RowSpans`; collects ``problems``."""

    script: Script
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        script = self.script
        Watched.made = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spans_module, "FillSession", Watched)
            try:
                self._run(RowSpans(), make_row(script.prediction, len(script.text), script.fill))
            except (AssertionError, IndexError, ValueError) as error:
                self.problems.append(f"raised {error!r}")
        return self.problems

    def _run(self, spans: RowSpans, row: Row) -> None:
        text = self.script.text
        spans.open_row(row, accepts=True)
        turn, going = 0, True
        if self.script.splits_tail:
            spans.ask(row)
        else:
            going = self._deliver(spans, row, plain(text[0]))
        while going:
            if turn in self.script.preempted:
                spans.suspend(row)
                spans.close_row(row)
                spans.resume(row)
            going = self._deliver(spans, row, self._round(spans, row, turn))
            turn += 1
        spans.close_row(row)
        spans.close_row(row)
        self._check_end(row)

    def _round(self, spans: RowSpans, row: Row, turn: int) -> RowResult:
        """One round: the span's proposals, else as many right ones of a drafter as the script says."""
        rest = self.script.text[row.generated :]
        ids: tuple[int, ...] = ()
        if spans.started(row):
            ids = tuple(spans.proposals(row, self.script.depth, alone=self.script.alone))
            self._check_proposals(row, ids)
            source = "span"
        else:
            ids = rest[: self.script.drafted[turn % len(self.script.drafted)]]
            source = "draft" if ids else "plain"
        right = agreeing(ids, rest)
        return RowResult(ids, rest[: right + 1], right, source=source)  # type: ignore[arg-type]

    def _deliver(self, spans: RowSpans, row: Row, result: RowResult) -> bool:
        taken = min(len(result.emitted), self.script.stops_at - row.generated)
        going = taken == len(result.emitted) and row.generated + taken < len(self.script.text)
        deliver(spans, row, result, taken, going)
        for session in Watched.made:
            delivered = list(self.script.text[: row.generated])
            fed = len(session.fed)
            covered = session.open.ids(0, len(delivered) - fed) if session.open is not None else []
            if session.fed != delivered[:fed] or covered != delivered[fed:]:
                self.problems.append(f"fed {session.fed}, in the open span {covered}, delivered {delivered}")
        return going

    def _check_proposals(self, row: Row, ids: tuple[int, ...]) -> None:
        session = Watched.made[-1]
        span, matched = session.open, row.generated - len(session.fed)
        if span is None:
            self.problems.append("proposals without an open span")
            return
        width = 31 if self.script.alone else max(self.script.depth, 8)
        if not matched:
            self.problems.append("a window before the first match")
        if not 0 < len(ids) <= min(width, row.remaining):
            self.problems.append(f"{len(ids)} ids of {row.remaining} that remain, the width is {width}")
        if list(ids) != span.ids(matched, len(ids)):
            self.problems.append(f"{ids} are not the span's next ids")

    def _check_end(self, row: Row) -> None:
        for session in Watched.made:
            spans = [span for span, _ in session.committed]
            if spans != session.proposed:
                self.problems.append(f"{len(session.proposed)} spans proposed, {len(spans)} committed")
            if any(not 0 <= matched <= len(span) for span, matched in session.committed):
                self.problems.append("matched out of range")
            if session.fed != list(self.script.text[: row.generated]):
                self.problems.append(f"fed {session.fed} of {self.script.text[: row.generated]}")


_IDS = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(tuple)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Texts of few ids, predictions that are such a text with edits, or another one."""
    text = draw(_IDS)
    prediction = draw(st.none() | _IDS)
    if prediction is not None and draw(st.booleans()):
        cut, size = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        prediction = (*text[:cut], *prediction[:size], *text[cut + draw(st.integers(0, 3)) :]) or (0,)
    return Script(
        text=text,
        prediction=prediction,
        fill=draw(st.booleans()),
        drafted=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))),
        stops_at=draw(st.integers(1, 60)),
        preempted=frozenset(draw(st.sets(st.integers(0, 20), max_size=3))),
        alone=draw(st.booleans()),
        depth=draw(st.integers(0, 12)),
        splits_tail=draw(st.booleans()),
    )


@given(scripts())
def test_every_token_is_fed_once_and_every_span_settled_once(script: Script) -> None:
    assert Life(script).run() == []


def _walk_observes_too(self: Any, token: int) -> None:
    before = self.span
    _WALK(self, token)
    if before is not None and before is self.span:
        self.session.observe(token)


def _walk_forgets_the_mismatch(self: Any, token: int) -> None:
    if self.span is not None and token != self.span[self.matched]:
        self.settle()
        return
    _WALK(self, token)


def _settle_twice(self: Any) -> None:
    span, matched = self.span, self.matched
    _SETTLE(self)
    if span is not None:
        self.session.commit(span, matched)


def _settle_one_too_many(self: Any) -> None:
    if self.span is not None:
        self.matched = min(self.matched + 1, len(self.span))
    _SETTLE(self)


def _settle_never(self: Any) -> None:
    self.span, self.matched = None, 0


def _reach_before_a_match(self: Any) -> int:
    return 0 if self.span is None else len(self.span) - self.matched


def _reach_past_the_budget(self: spans_module.RowSpans, row: Row, follower: Any, depth: int, alone: bool) -> int:
    return int(follower.reach()) + 1


_WALK, _SETTLE = spans_module._Follower.walk, spans_module._Follower.settle
_BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "matched tokens are observed too": (spans_module._Follower, "walk", _walk_observes_too),
    "the mismatch is fed to nobody": (spans_module._Follower, "walk", _walk_forgets_the_mismatch),
    "a span is settled twice": (spans_module._Follower, "settle", _settle_twice),
    "a span is settled with one id too many": (spans_module._Follower, "settle", _settle_one_too_many),
    "a span is dropped without being settled": (spans_module._Follower, "settle", _settle_never),
    "a window before the first match": (spans_module._Follower, "reach", _reach_before_a_match),
    "a window wider than it may be": (spans_module.RowSpans, "_count", _reach_past_the_budget),
}


@pytest.mark.parametrize("name", list(_BROKEN))
def test_broken_bookkeeping_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken = _BROKEN[name]
    monkeypatch.setattr(owner, attribute, broken)
    chance = random.Random(1)
    scripts = [_some_script(chance) for _ in range(40)]
    assert any(Life(script).run() for script in scripts)


def _some_script(chance: random.Random) -> Script:
    text = tuple(chance.randrange(30) for _ in range(chance.randint(5, 60)))
    edit = chance.randrange(len(text))
    prediction = (*text[:edit], 99, *text[edit + chance.randrange(2) :])
    drafted = (0, chance.randrange(3))
    stops = chance.choice((200, chance.randint(1, len(text))))
    return Script(text, prediction, False, drafted, stops, frozenset({3}), chance.random() < 0.5, 4, False)


def test_the_scripts_of_the_broken_ones_are_lived_well_by_the_real_one() -> None:
    chance = random.Random(1)
    assert [Life(_some_script(chance)).run() for _ in range(40)] == [[]] * 40
