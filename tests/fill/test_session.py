"""Fill sessions: where spans start, how they go on after edits, what is verified, and what is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fill.kit import code_like, copying, edited, first_ids, flat, follow, predicted

from paceline.fill.session import FillSession
from paceline.fill.source import Prediction, Span

TEXT = [100 + n for n in range(400)]


def test_a_prediction_is_proposed_from_its_beginning_in_at_most_the_tokens_that_remain() -> None:
    session = predicted(TEXT)
    span = session.propose(9)
    assert first_ids(span, 99) == TEXT[:9]
    assert len(predicted(TEXT[:5]).propose(9) or ()) == 5


def test_after_a_first_token_that_agrees_the_span_goes_on_behind_it() -> None:
    session = predicted(TEXT)
    session.observe(TEXT[0])
    assert first_ids(session.propose(99), 4) == TEXT[1:5]


def test_nothing_is_worth_a_window_before_an_id_has_matched() -> None:
    session = predicted(TEXT)
    span = session.propose(50)
    assert span is not None
    assert session.reach(span, 0) == 0
    assert session.reach(span, 1) > 0
    assert session.reach(span, 8) >= session.reach(span, 2) > session.reach(span, 1)


def test_a_text_that_is_the_prediction_takes_one_plain_round() -> None:
    found = follow(predicted(TEXT), TEXT)
    assert [accepted for _, accepted in found.windows] == [proposed for proposed, _ in found.windows]
    assert found.forwards <= 3 + len(TEXT) / 32


_EDITS = {
    "replaced": lambda place, n: TEXT[:place] + [-1] * n + TEXT[place + n :],
    "inserted": lambda place, n: TEXT[:place] + [-1] * n + TEXT[place:],
    "deleted": lambda place, n: TEXT[:place] + TEXT[place + n :],
    "replaced by half as much": lambda place, n: TEXT[:place] + [-1] * n + TEXT[place + 2 * n :],
}


@pytest.mark.parametrize("kind", list(_EDITS))
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_after_an_edit_the_text_is_found_again_within_three_plain_rounds(kind: str, size: int) -> None:
    """Beside the ids that are new, of which nothing can be known."""
    text = _EDITS[kind](150, size)
    new = text.count(-1)
    found = follow(predicted(TEXT), text)
    plain = found.forwards - len(found.windows)
    assert plain <= 1 + new + 3
    assert sum(accepted for _, accepted in found.windows) >= len(text) - plain - len(found.windows) - 1


def test_a_block_that_has_moved_is_found_by_its_ids() -> None:
    text = TEXT[:50] + TEXT[200:300] + TEXT[50:150]
    found = follow(predicted(TEXT), text)
    assert found.forwards - len(found.windows) <= 12


def test_a_preamble_before_the_predicted_text_does_not_hide_it() -> None:
    for size in (3, 40, 200):
        found = follow(predicted(TEXT), [-1] * size + TEXT)
        assert found.forwards - len(found.windows) <= size + 6


def test_of_lines_that_repeat_the_next_one_is_followed() -> None:
    record = [1, 2, 3, 4, 5, 6]
    prediction = flat([[*record, 50 + n, 7, 8] for n in range(30)])
    text = flat([[*record, 50 + n if n != 11 else -1, 7, 8] for n in range(30)])
    found = follow(predicted(prediction), text)
    assert found.forwards <= 16, "with the wrong line every number would be wrong"


def test_a_prediction_that_has_nothing_to_do_with_the_text_costs_next_to_nothing() -> None:
    chance = random.Random(3)
    other, text = flat(code_like(chance, 200)), flat(code_like(chance, 200))
    found = follow(predicted(other), text)
    assert found.verified < 0.15 * len(text)


@pytest.mark.parametrize("seed", range(4))
def test_a_document_with_edits_takes_few_forwards(seed: int) -> None:
    chance = random.Random(seed)
    lines = code_like(chance, 300)
    found = follow(predicted(flat(edited(chance, lines, 10))), flat(lines))
    assert not found.problems
    assert found.tokens_per_forward > 6


def test_five_thousand_tokens_are_one_span() -> None:
    long = [100 + (n * 7919) % 4999 for n in range(5000)]
    session = predicted(long)
    found = follow(session, long)
    assert found.forwards < 165
    assert session.stats.spans <= 2


def test_own_text_repeats_after_eight_ids_and_not_before() -> None:
    session = copying([*TEXT[:30], -1, -2])
    for token in TEXT[:7]:
        session.observe(token)
        assert session.propose(50) is None
    session.observe(TEXT[7])
    assert first_ids(session.propose(50), 5) == TEXT[8:13]


def test_own_text_that_goes_in_circles_is_followed_round_and_round() -> None:
    circle = [5, 6, 7, 8, 9] * 40
    found = follow(copying([1, 2, 3]), circle)
    assert found.forwards < 30


def test_a_session_may_have_both_sources() -> None:
    prompt = [900 + n for n in range(60)]
    text = TEXT[:60] + prompt + TEXT[60:120]
    alone, both = follow(predicted(TEXT), text), follow(predicted(TEXT, prompt, own=True), text)
    assert both.forwards < alone.forwards - 20
    assert both.tokens_per_forward > 5


def test_only_ids_of_the_prediction_count_as_prediction_tokens() -> None:
    prompt = [900 + n for n in range(60)]
    session = predicted(TEXT[:60], prompt, own=True)
    follow(session, TEXT[:60] + prompt)
    stats = session.stats
    assert 50 <= stats.accepted_prediction_tokens <= 60
    assert stats.matched > stats.accepted_prediction_tokens + 40


def test_rejected_ids_are_those_verified_in_vain() -> None:
    session = predicted(TEXT)
    found = follow(session, TEXT[:100] + TEXT[200:300])
    wrong = sum(proposed - accepted for proposed, accepted in found.windows)
    assert session.stats.rejected_prediction_tokens == session.stats.rejected == wrong > 0
    assert session.stats.rounds == len(found.windows)


def test_the_samples_of_a_prompt_share_their_prediction() -> None:
    prediction = Prediction(TEXT)
    first, second = FillSession((), prediction, False), FillSession((), prediction, False)
    follow(first, [*TEXT[:200], -1, *TEXT[200:]])
    assert first_ids(second.propose(5), 5) == TEXT[:5]


def test_a_span_expects_more_the_more_speaks_for_it() -> None:
    session = predicted(TEXT)
    span = session.propose(100)
    assert span is not None
    assert session.expected(span, 0, 16) == 0
    assert 0 < session.expected(span, 1, 16) <= session.expected(span, 4, 16) <= 16
    assert session.expected(span, 4, 4) < session.expected(span, 4, 16)


_SMALL = st.lists(st.integers(0, 5), min_size=1, max_size=60)


class _Fed(FillSession):
    """Notes every token it is fed."""

    def __init__(self, prompt: Sequence[int], prediction: Prediction | None, own: bool) -> None:
        super().__init__(prompt, prediction, own)
        self.fed: list[int] = []
        self.proposed: list[Span] = []
        self.committed: list[Span] = []

    def observe(self, token: int) -> None:
        super().observe(token)
        self.fed.append(token)

    def propose(self, max_tokens: int) -> Span | None:
        span = super().propose(max_tokens)
        if span is not None:
            self.proposed.append(span)
        return span

    def commit(self, span: Span, matched: int) -> None:
        ids = span.ids(0, matched)
        super().commit(span, matched)
        self.committed.append(span)
        self.fed.extend(ids)


@given(_SMALL, _SMALL, _SMALL, st.booleans(), st.booleans(), st.integers(1, 40))
def test_any_text_is_fed_once_and_every_span_committed_once(
    text: list[int], prediction: list[int], prompt: list[int], own: bool, predicts: bool, width: int
) -> None:
    session = _Fed(prompt, Prediction(prediction) if predicts else None, own)
    found = follow(session, text, width)
    assert session.fed == text
    assert session.proposed == session.committed
    assert not found.problems
    assert all(0 < proposed <= width for proposed, _ in found.windows)
    if own:
        assert session._text == prompt + text
    stats = session.stats
    assert stats.spans == len(session.committed)
    assert stats.verified == found.verified
    assert stats.accepted <= stats.matched <= len(text)
    assert stats.accepted_prediction_tokens <= (stats.matched if predicts else 0)


@given(_SMALL, _SMALL, st.booleans())
def test_equal_texts_give_equal_proposals(text: list[int], prediction: list[int], own: bool) -> None:
    runs = [follow(predicted(prediction, (), own), text) for _ in range(2)]
    assert runs[0] == runs[1]
