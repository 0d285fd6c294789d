"""Host acceptance: the transition table of spec 8.2 and its consequences 8.3 (invariant 7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.acceptance import Acceptance

EOS = 7


def walked(proposals: list[int], draws: list[int], remaining: int) -> Acceptance:
    acceptance = Acceptance(proposals, remaining, {EOS})
    for token in draws:
        if acceptance.done:
            break
        acceptance.accept(token)
    return acceptance


def consequences(a: Acceptance) -> None:
    assert 0 <= a.accepted <= min(len(a.proposals), len(a.emitted))
    assert len(a.emitted) - a.accepted in (0, 1)
    assert tuple(a.emitted[: a.accepted]) == a.proposals[: a.accepted]
    assert a.position == len(a.emitted) + a.saw_eos
    assert EOS not in a.emitted
    assert (a.correction is not None) == (len(a.emitted) > a.accepted)


@given(
    st.lists(st.integers(0, 7), max_size=6),
    st.lists(st.integers(0, 7), min_size=7, max_size=7),
    st.integers(1, 8),
)
def test_invariant_7_consequences(proposals: list[int], draws: list[int], remaining: int) -> None:
    acceptance = walked(proposals, draws, remaining)
    assert acceptance.done
    assert len(acceptance.emitted) <= remaining
    consequences(acceptance)


def test_invariant_7_catches_an_acceptor_that_takes_one_too_many() -> None:
    class Greedy(Acceptance):
        def accept(self, token: int, grammar_done: bool = False) -> None:
            super().accept(token, grammar_done)
            if self.done and self.correction is not None and self.position <= len(self.proposals):
                self.accepted += 1

    acceptance = Greedy([1, 2], 5, {EOS})
    acceptance.accept(3)
    with pytest.raises(AssertionError):
        consequences(acceptance)


def test_an_eos_that_was_proposed_is_not_accepted() -> None:
    acceptance = walked([1, EOS, 2], [1, EOS, 2], 9)
    assert (acceptance.emitted, acceptance.accepted, acceptance.saw_eos) == ([1], 1, True)
    assert acceptance.end_id == EOS
    assert acceptance.correction is None


def test_a_grammar_that_ends_on_a_match_keeps_it_accepted() -> None:
    acceptance = Acceptance([1, 2], 9, {EOS})
    acceptance.accept(1, grammar_done=True)
    assert (acceptance.accepted, acceptance.done, acceptance.grammar_done) == (1, True, True)


def test_no_proposals_means_exactly_one_draw() -> None:
    acceptance = walked([], [4], 9)
    assert acceptance.done
    assert (acceptance.emitted, acceptance.correction) == ([4], 4)


def test_nothing_may_be_drawn_after_the_end() -> None:
    acceptance = walked([], [4], 9)
    with pytest.raises(ValueError, match="done"):
        acceptance.accept(5)
