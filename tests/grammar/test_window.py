"""A grammar over a round's window: masks, cuts, ends, and the burst that follows; against the walk token by token."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.grammar.kit import EOS, SPECS, VOCAB, ids_of, observed, opened, random_text, replayed

from paceline.core.acceptance import Acceptance
from paceline.core.errors import RowFailed
from paceline.core.round import RowResult
from paceline.grammar.bits import permitted_ids
from paceline.grammar.handle import LlguidanceMatcher
from paceline.grammar.spec import GrammarSpec
from paceline.grammar.window import WindowMasks, accept_burst, constrained_proposals, cut_at_end, window_masks

_names = st.sampled_from(sorted(SPECS))


def _stepwise(name: str, ids: list[int], proposals: list[int]) -> tuple[list[list[int]], int, int | None]:
    """What the window must be, each place by a fresh matcher that never goes back."""
    masks = [permitted_ids(replayed(name, ids).mask())]
    ends_at = None
    for place, token in enumerate(proposals):
        before = replayed(name, [*ids, *proposals[:place]])
        if before.is_terminated or token not in permitted_ids(before.mask()):
            break
        after = replayed(name, [*ids, *proposals[: place + 1]])
        masks.append(permitted_ids(after.mask()))
        if after.is_terminated:
            ends_at = place
    return masks, len(masks) - 1, ends_at


def _proposals(name: str, ids: list[int], rng: random.Random) -> list[int]:
    """Up to 8 proposals: legal ones, then perhaps an illegal one at a random place, then anything."""
    matcher = replayed(name, ids)
    legal: list[int] = []
    while len(legal) < rng.randint(0, 8) and not matcher.is_terminated:
        legal.append(rng.choice(permitted_ids(matcher.mask())))
        assert matcher.accept(legal[-1])
    return [*legal, *(rng.randrange(VOCAB) for _ in range(8 - len(legal)))]


@given(_names, st.integers(0, 2**32))
def test_a_window_equals_the_walk(name: str, seed: int) -> None:
    rng = random.Random(seed)
    ids = random_text(name, rng, most=15)[: rng.randint(0, 15)]
    matcher = replayed(name, ids)
    before = observed(matcher)
    proposals = _proposals(name, ids, rng)
    window = window_masks(matcher, proposals)
    assert ([permitted_ids(mask) for mask in window.masks], *window[1:]) == _stepwise(name, ids, proposals)
    assert window.masks.shape == (window.legal_length + 1, (VOCAB + 31) // 32) and window.masks.dtype == np.int32
    assert observed(matcher) == before


class _Forgetful(LlguidanceMatcher):
    """Takes back one token too few whenever it is asked for more than one: the fault of case S22."""

    def rollback(self, count: int) -> None:
        super().rollback(count - 1 if count > 1 else count)


def test_the_comparison_finds_a_rollback_that_is_one_short() -> None:
    whole = opened("schema")
    broken = _Forgetful(whole._fresh, whole._vocabulary)
    before = observed(broken)
    window_masks(broken, ids_of('{"a"'))
    assert observed(broken) != before


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("name", ["schema", "regex", "choice", "nested"])
def test_an_illegal_proposal_at_each_place_is_cut(name: str, place: int) -> None:
    """S22: round after round, the cut is before the illegal proposal and nothing of the walk stays."""
    matcher = opened(name)
    ids = random_text(name, random.Random(3), most=40)
    for done in range(len(ids) - place):
        legal = ids[done : done + place]
        allowed = permitted_ids(replayed(name, [*ids[:done], *legal]).mask())
        illegal = next(token for token in range(VOCAB) if token not in allowed)
        window = window_masks(matcher, [*legal, illegal, *ids[done:]])
        assert window.legal_length == place and window.ends_at is None
        assert observed(matcher) == observed(replayed(name, ids[:done]))
        assert matcher.accept(ids[done])


@pytest.mark.parametrize("text", ['{"a":7}', '{"a":123}'])
def test_the_end_at_each_place_of_a_window(text: str) -> None:
    """S21: the closing brace, EOS and three more ids are proposed, with the brace at each place of the window."""
    ids = ids_of(text)
    tail = [EOS[0], *ids_of("}a ")]
    for start in range(len(ids)):
        matcher = replayed("schema", ids[:start])
        proposals = [*ids[start:], *tail]
        window = window_masks(matcher, proposals)
        assert (window.legal_length, window.ends_at) == (len(ids) - start, len(ids) - start - 1)
        assert permitted_ids(window.masks[-1]) == sorted(EOS)
        # Every draw matches: the device emits on past the end, the burst is cut at it.
        drawn = RowResult(tuple(proposals), (*ids[start:], *ids_of("}")), len(ids) - start + 1, metadata=range(9))
        cut = cut_at_end(matcher, drawn)
        assert cut.emitted == tuple(ids[start:]) and cut.accepted == len(ids) - start
        assert cut.grammar_done and not cut.saw_eos and len(cut.metadata or ()) == len(ids) - start
        assert matcher.is_terminated


@given(_names, st.integers(0, 2**32), st.integers(0, 8))
def test_a_cut_burst_is_the_walk_of_the_draws(name: str, seed: int, right: int) -> None:
    """The result of a device round, cut, equals feeding the same draws to the acceptance one by one."""
    rng = random.Random(seed)
    ids = random_text(name, rng, most=15)[: rng.randint(0, 15)]
    if replayed(name, ids).is_terminated:
        return
    proposals = _proposals(name, ids, rng)
    matcher = replayed(name, ids)
    window = window_masks(matcher, proposals)
    proposals = proposals[: window.legal_length]
    draws = [
        proposals[place] if place < min(right, len(proposals)) else rng.choice(permitted_ids(mask))
        for place, mask in enumerate(window.masks)
    ]
    walked, ungoverned = Acceptance(proposals, 99, frozenset(EOS)), Acceptance(proposals, 99, frozenset(EOS))
    walker = replayed(name, ids)
    while not walked.done:
        token = draws[walked.position]
        walked.accept(token, token not in EOS and walker.accept(token) and walker.is_terminated)
    while not ungoverned.done:
        ungoverned.accept(draws[ungoverned.position])
    device = RowResult.of(ungoverned, "draft")
    assert cut_at_end(matcher, device) == RowResult.of(walked, "draft")
    if not walked.saw_eos:
        assert observed(matcher) == observed(walker)


def test_a_complete_grammar_has_a_window_of_its_own() -> None:
    matcher = replayed("choice", ids_of("their people"))
    assert matcher.is_terminated
    window = window_masks(matcher, [*EOS, 5])
    assert window.legal_length == 0 and window.ends_at is None and permitted_ids(window.masks[0]) == sorted(EOS)


def test_eos_may_be_proposed_where_the_text_may_end() -> None:
    matcher = replayed("open_end", ids_of("ab"))
    window = window_masks(matcher, [EOS[1], *ids_of("ab")])
    assert (window.legal_length, window.ends_at) == (1, 0)


def test_a_burst_stops_where_the_grammar_ends() -> None:
    ids = ids_of('{"a":7}')
    assert accept_burst(opened("schema"), [*ids, 5, 6]) == len(ids)
    assert accept_burst(opened("schema"), ids[:-1]) is None
    with pytest.raises(RowFailed, match="forbids token"):
        accept_burst(opened("schema"), [ids_of("x")[0]])


def test_forced_text_is_proposed_unless_the_drafter_says_the_same_and_more() -> None:
    matcher = opened(GrammarSpec("regex", "the people( of the)?!"))
    forced = matcher.forced_tokens(99)
    assert len(forced) > 2
    more = [*forced, 200, 201]
    assert constrained_proposals(matcher, [], 99) == forced
    assert constrained_proposals(matcher, more, len(forced) + 1) == more[:-1]
    assert constrained_proposals(matcher, forced[:1], 99) == forced
    assert constrained_proposals(matcher, [5, 6, 7], 99) == forced
    assert constrained_proposals(matcher, more, 1) == forced[:1]
    assert constrained_proposals(opened("lark"), [7, 8, 9], 2) == [7, 8]
    assert constrained_proposals(opened("lark"), [7, 8, 9], 0) == []


class _Fragile(LlguidanceMatcher):
    """Has no mask once it holds ``deepest`` tokens, as if a limit were reached there."""

    deepest = 2

    def mask(self) -> np.ndarray:
        if len(self._history) >= self.deepest:
            raise RowFailed("the grammar became too complex")
        return super().mask()


def test_drafts_cannot_fail_a_row_that_may_never_get_there() -> None:
    whole = opened("schema")
    matcher = _Fragile(whole._fresh, whole._vocabulary)
    ids = ids_of('{"a":7}')
    window: WindowMasks = window_masks(matcher, ids)
    assert window.legal_length == 1 and len(matcher._history) == 0
    assert accept_burst(matcher, ids[:2]) is None
    with pytest.raises(RowFailed):
        window_masks(matcher, ids[2:])
