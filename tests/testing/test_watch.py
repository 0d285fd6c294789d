"""The watching wrapper is silent on a sound run and finds each breach of the drafter contract, on either side."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.core.batch import ForwardBatch, RoundBatch, Window
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.draft.base import TargetView
from paceline.testing.drafters import ScriptedDrafter
from paceline.testing.watch import WatchedDrafter

VIEW = TargetView(50, 4, 1, 100, (), "cpu", "float64")
PROMPT = (1, 2, 3, 4)


class Session:
    """Plays the engine for one row; every step can be bent by a test."""

    def __init__(self, script: list[list[int]] | None = None) -> None:
        self.watched = WatchedDrafter(ScriptedDrafter(script or [[5, 6]] * 9))
        self.rows = self.watched.open(VIEW, None, None)  # type: ignore[arg-type]
        request = Request("r", PROMPT, SamplingParams(max_tokens=9), 9, (), seed=0, draft_cap=4)
        self.row = Row(request, 0, list(PROMPT))

    def window(self, tokens: list[int], start: int, rows: int = 1) -> Window:
        count = len(tokens)
        batch = ForwardBatch(
            torch.tensor(tokens), torch.arange(start, start + count), torch.tensor([0]), [count], [start], {}, {}
        )
        return Window(batch, torch.zeros(count, 4))

    def prefill(self, start: int, end: int, tokens: list[int] | None = None) -> None:
        window = self.window(list(PROMPT[start:end]) if tokens is None else tokens, start)
        self.rows.prefill([self.row], window.batch, window.context)

    def join(self) -> None:
        self.rows.prepare_join(self.row).commit()
        self.row.tokens.append(9)
        self.row.pending, self.row.length, self.row.generated = 9, 4, 1

    def batch(self, depth: int) -> RoundBatch:
        return RoundBatch([self.row], torch.tensor([0]), [depth])

    def round(self, depth: int = 2, accepted: int = 1, window: list[int] | None = None) -> None:
        (proposal,) = self.rows.draft(self.batch(depth)).to_lists()
        inputs = [self.row.pending, *proposal] if window is None else window
        self.rows.commit(self.batch(depth), self.window(inputs, self.row.length), [accepted])
        self.row.tokens += [*proposal[:accepted], 8]
        self.row.pending = 8
        self.row.length += 1 + accepted
        self.row.generated += 1 + accepted

    def until_round(self) -> Session:
        self.rows.open_row(self.row, None)
        self.prefill(0, 3)
        self.prefill(3, 4)
        self.join()
        return self


def test_a_sound_run_has_no_problems_and_is_recorded() -> None:
    session = Session().until_round()
    session.round()
    session.round(depth=2, accepted=0)
    session.rows.close_row(session.row)
    session.rows.close()
    record = session.watched.rows["r"]
    assert session.watched.problems == []
    assert (record.covered, record.proposed, record.accepted, record.positions) == (7, [2, 2], [1, 0], [6, 8])
    methods = [method for method, _ in session.watched.events]
    rounds = ["draft", "commit"] * 2
    assert methods == ["open_row", "prefill", "prefill", "prepare_join", *rounds, "close_row", "close"]


def _open_twice(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.rows.open_row(session.row, None)


def _gap(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.prefill(2, 4)


def _other_tokens(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.prefill(0, 2, [7, 7])


def _join_early(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.prefill(0, 2)
    session.join()


def _draft_before_join(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.prefill(0, 4)
    session.rows.draft(session.batch(1))


def _too_deep(session: Session) -> None:
    session.until_round().rows.draft(session.batch(5))


def _past_budget(session: Session) -> None:
    session.until_round().row.generated = 8
    session.rows.draft(session.batch(2))


def _stale_pending(session: Session) -> None:
    session.until_round().row.pending = 3
    session.rows.draft(session.batch(1))


def _accepts_too_many(session: Session) -> None:
    session.until_round().round(accepted=3)


def _other_window(session: Session) -> None:
    session.until_round().round(window=[9, 5, 7])


def _closed_row(session: Session) -> None:
    session.until_round().rows.close_row(session.row)
    session.rows.draft(session.batch(1))


def _left_open(session: Session) -> None:
    session.until_round().rows.close()


def _moves(session: Session) -> None:
    session.until_round().row.index = 1
    session.rows.draft(session.batch(1))


def _join_ends_twice(session: Session) -> None:
    session.rows.open_row(session.row, None)
    session.prefill(0, 4)
    change = session.rows.prepare_join(session.row)
    change.undo()
    change.commit()


BREACHES = [
    (_open_twice, "open_row twice"),
    (_gap, "leaves a gap"),
    (_other_tokens, "not its prompt"),
    (_join_early, "joins with 2 of 4"),
    (_draft_before_join, "before it joined"),
    (_too_deep, "depth 5, cap 4"),
    (_past_budget, "past its budget"),
    (_stale_pending, "pending is not the newest"),
    (_accepts_too_many, "3 of 2 proposals"),
    (_other_window, "other proposals"),
    (_closed_row, "which is not open"),
    (_left_open, "were open"),
    (_moves, "index of row r changed"),
    (_join_ends_twice, "ended twice"),
]


@pytest.mark.parametrize(("breach", "words"), BREACHES, ids=lambda value: getattr(value, "__name__", None))
def test_each_breach_by_the_engine_is_found(breach: Any, words: str) -> None:
    session = Session()
    breach(session)
    assert any(words in problem for problem in session.watched.problems), session.watched.problems


@pytest.mark.parametrize(("script", "words"), [([[1, 2, 3]], "proposed 3 tokens"), ([[50]], "outside the vocabulary")])
def test_each_breach_by_the_drafter_is_found(script: list[list[int]], words: str) -> None:
    session = Session(script).until_round()
    inner: Any = session.watched.inner
    inner.propose_for = lambda row, depth: script[0]
    session.rows.draft(session.batch(2))
    assert any(words in problem for problem in session.watched.problems)
