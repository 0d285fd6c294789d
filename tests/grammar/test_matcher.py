"""A handle of a grammar: what its masks permit, where it ends, and what moves it: accepting and taking back only."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.grammar.kit import (
    EOS,
    SPECS,
    VOCAB,
    backend,
    backend_with,
    ids_of,
    observed,
    opened,
    random_text,
    replayed,
    text_of,
)

from paceline.core.errors import RowFailed
from paceline.grammar.bits import permitted_ids
from paceline.grammar.handle import LlguidanceMatcher
from paceline.grammar.spec import GrammarSpec
from paceline.grammar.window import window_masks

_names = st.sampled_from(sorted(SPECS))


def _follows(matcher: LlguidanceMatcher, text: str) -> bool:
    """Whether the whole text is permitted, id by id, and may end there."""
    for token in ids_of(text):
        if token not in permitted_ids(matcher.mask()) or not matcher.accept(token):
            return False
    return matcher.is_terminated or EOS[0] in permitted_ids(matcher.mask())


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("schema", ['{"a":1}', '{ "a" : -20\n}', '{"a":12345678901234567890}'], ["{}", '{"a":1.5}', '{"a":1,"b":2}']),
        ("nested", ['{"kind":"the","list":[]}', '{"kind":"other","list":[1.5,null],"text":"é"}'], ['{"kind":"t"}']),
        ("object", ["{}", '{"x":[{"y":null}]}'], ["[]", "1", '{"x":}']),
        ("open_end", ["ab", "the abc", "ababthe "], ["", "c", "abcc"]),
        ("regex", ["AB-1", "XY-123 of the people"], ["AB-", "AB-1234", "AB-1 of"]),
        ("choice", ["a", "the", "there", "their people", 'é"\\'], ["th", "their", "b", ""]),
        ("lark", ["abc", "((x))"], ["(x", "abcd"]),
        ("gbnf", ["1", "1,(2,33)"], ["1,", "(1"]),
    ],
)
def test_masks_permit_the_language_and_no_more(name: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert _follows(opened(name), text), text
    for text in bad:
        assert not _follows(opened(name), text), text


@given(_names, st.integers(0, 2**32))
def test_text_drawn_under_masks_is_in_the_language(name: str, seed: int) -> None:
    ids = random_text(name, random.Random(seed), most=60)
    matcher = opened(name)
    assert all(matcher.accept(token) for token in ids)
    assert all(token < 320 for token in ids)  # padded ids are never permitted
    if matcher.is_terminated and name in ("schema", "nested", "object"):
        assert isinstance(json.loads(text_of(ids)), dict)


@given(_names, st.integers(0, 2**32), st.lists(st.integers(1, 6), max_size=12), st.booleans())
def test_a_walk_with_rollbacks_equals_a_fresh_one(name: str, seed: int, pattern: list[int], asks: bool) -> None:
    rng = random.Random(seed)
    matcher = opened(name)
    kept: list[int] = []
    for size in pattern:
        for _ in range(size):
            if asks:
                observed(matcher)
            if matcher.is_terminated:
                break
            kept.append(rng.choice(permitted_ids(matcher.mask())))
            assert matcher.accept(kept[-1])
        back = rng.randint(0, len(kept))
        matcher.rollback(back)
        del kept[len(kept) - back :]
        assert observed(matcher) == observed(replayed(name, kept))


@given(_names, st.integers(0, 2**32))
def test_a_forbidden_id_changes_nothing(name: str, seed: int) -> None:
    """Every id outside the mask; where text is forced, another spelling of it may be taken, and given back."""
    rng = random.Random(seed)
    ids = random_text(name, rng, most=12)[: rng.randint(0, 12)]
    matcher = replayed(name, ids)
    before = observed(matcher)
    _, permitted, forced = before
    for token in set(range(-1, VOCAB + 1)).difference(permitted):
        if matcher.accept(token):
            assert forced and text_of(forced).startswith(text_of([token]))
            matcher.rollback(1)
    assert observed(matcher) == before
    matcher.rollback(len(ids))
    assert observed(matcher) == observed(opened(name))


def test_forced_text_has_one_spelling_in_masks_and_windows() -> None:
    matcher = opened(GrammarSpec("regex", "a the people"))
    assert matcher.accept(ids_of("a")[0])
    space, usual = ids_of(" x")[0], ids_of(" the")[0]
    assert space != usual and permitted_ids(matcher.mask()) == [usual]
    assert matcher.accept(space)  # the text is the same, and a row that has it can go on
    matcher.rollback(1)
    assert window_masks(matcher, [space]).legal_length == 0
    assert window_masks(matcher, [usual]).legal_length == 1


@given(_names, st.integers(0, 2**32), st.integers(1, 10))
def test_forced_tokens_are_legal(name: str, seed: int, most: int) -> None:
    rng = random.Random(seed)
    matcher = replayed(name, random_text(name, rng, most=12)[: rng.randint(0, 12)])
    forced = matcher.forced_tokens(most)
    assert len(forced) <= most
    for token in forced:
        assert token in permitted_ids(matcher.mask())
        assert matcher.accept(token)


def test_text_that_is_forced_is_found() -> None:
    matcher = opened(GrammarSpec("regex", "the people( of the)?!"))
    forced = matcher.forced_tokens(99)
    assert forced and "the people".startswith(text_of(forced)) and len(text_of(forced)) > 4
    assert matcher.forced_tokens(2) == forced[:2]
    assert matcher.forced_tokens(0) == []


def test_eos_is_permitted_exactly_where_the_text_may_end() -> None:
    matcher = opened("open_end")
    assert not set(EOS) & set(permitted_ids(matcher.mask())) and not matcher.accept(EOS[0])
    for token in ids_of("ab"):
        assert matcher.accept(token)
    assert set(EOS) < set(permitted_ids(matcher.mask())) and not matcher.is_terminated
    assert matcher.accept(EOS[1]) and matcher.is_terminated
    assert permitted_ids(matcher.mask()) == sorted(EOS)
    assert not matcher.accept(ids_of("a")[0])
    matcher.rollback(1)
    assert not matcher.is_terminated and matcher.accept(ids_of("a")[0])


def test_a_grammar_ends_by_its_last_content_token() -> None:
    matcher = opened("schema")
    ids = ids_of('{"a":7}')
    ends = []
    for token in ids:
        assert matcher.accept(token)
        ends.append(matcher.is_terminated)
    assert ends == [False] * (len(ids) - 1) + [True]
    # S21: whatever is asked or fed after the end, nothing breaks and nothing but EOS is taken
    for token in (*ids, 9999):
        assert not matcher.accept(token)
    assert matcher.accept(EOS[0]) and matcher.accept(EOS[0]) and matcher.forced_tokens(4) == []
    assert permitted_ids(matcher.mask()) == sorted(EOS)
    matcher.rollback(len(ids) + 2)
    assert observed(matcher) == observed(opened("schema"))


def test_an_eos_id_never_stands_for_text() -> None:
    [letter] = ids_of("x")
    matcher = backend_with([letter]).compile(GrammarSpec("regex", "[a-z]{2,3}")).open()
    assert letter not in permitted_ids(matcher.mask())
    for token in ids_of("ab"):
        assert matcher.accept(token)
    assert letter in permitted_ids(matcher.mask()) and matcher.accept(letter) and matcher.is_terminated


@pytest.mark.parametrize("expression", [r"<\|im_end\|>", r"x<\|im_start\|>y", r"<\|(pad|im_end)\|>z?"])
def test_text_that_reads_like_a_special_token_is_spelt_by_others(expression: str) -> None:
    matcher = opened(GrammarSpec("regex", expression))
    ids: list[int] = []
    while not matcher.is_terminated:
        ids.append(max(permitted_ids(matcher.mask())))
        assert ids[-1] > 3 and all(token > 3 for token in matcher.forced_tokens(9)) and matcher.accept(ids[-1])
    assert re.fullmatch(expression, text_of(ids))


def test_without_eos_ids_a_grammar_ends_only_by_itself() -> None:
    matcher = backend_with([]).compile(SPECS["choice"]).open()
    for token in ids_of("the"):
        assert matcher.accept(token)
    assert not set(EOS) & set(permitted_ids(matcher.mask())) and not matcher.is_terminated
    for token in ids_of("re"):
        assert matcher.accept(token)
    assert matcher.is_terminated and len(permitted_ids(matcher.mask())) == VOCAB


def test_more_cannot_be_taken_back_than_was_accepted() -> None:
    matcher = opened("choice")
    assert matcher.accept(ids_of("a")[0])
    for count in (-1, 2):
        with pytest.raises(ValueError, match="take back"):
            matcher.rollback(count)
    matcher.rollback(1)
    assert observed(matcher) == observed(opened("choice"))


def test_a_long_text_can_be_taken_back_at_any_length() -> None:
    """S23: the history that can be taken back is not bounded."""
    matcher = opened(GrammarSpec("json_schema", {"type": "array", "items": {"type": "integer"}}))
    start = observed(matcher)
    ids = ids_of("[" + ",".join(str(i % 100) for i in range(4000)) + "]")
    for place, token in enumerate(ids):
        assert matcher.accept(token)
        if place % 997 < 9:
            matcher.rollback(min(place + 1, place % 997))
            for again in ids[place + 1 - min(place + 1, place % 997) : place + 1]:
                assert matcher.accept(again)
    assert matcher.is_terminated
    matcher.rollback(len(ids))
    assert observed(matcher) == start


def test_handles_are_counted_and_closed_once() -> None:
    before = backend().open_handles
    matcher = opened("choice")
    assert backend().open_handles == before + 1
    matcher.close()
    matcher.close()
    assert backend().open_handles == before


def test_handles_of_one_grammar_are_independent() -> None:
    one, other = opened("regex"), opened("regex")
    start = observed(other)
    for token in ids_of("AB"):
        assert one.accept(token)
    assert observed(other) == start


def test_a_mask_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        opened("regex").mask()[0] = -1


class _Limited:
    """A library matcher that fails ``after`` calls, as one does that reached its limits."""

    def __init__(self, inner: object, after: int) -> None:
        self._inner = inner
        self._left = after

    def __getattr__(self, name: str) -> object:
        method = getattr(self._inner, name)

        def call(*arguments: object) -> object:
            if name in ("compute_bitmask", "try_consume_tokens"):
                self._left -= 1
            return {"is_error": self._left < 0, "get_error": "limit"}.get(name) or method(*arguments)

        return call


def _limited(first: int, later: int) -> LlguidanceMatcher:
    matcher = opened("open_end")
    budgets = iter([first])
    inner = matcher._fresh
    return LlguidanceMatcher(lambda: _Limited(inner(), next(budgets, later)), matcher._vocabulary)


@pytest.mark.parametrize("budget", range(8))
def test_a_limit_reached_by_earlier_work_fails_nothing(budget: int) -> None:
    matcher = _limited(budget, later=1000)
    plain = opened("open_end")
    for token in ids_of("abthe ab"):
        assert observed(matcher) == observed(plain)
        assert matcher.accept(token) and plain.accept(token)
    matcher.rollback(3)
    plain.rollback(3)
    assert observed(matcher) == observed(plain)


def test_a_place_beyond_the_limits_fails_and_can_be_left() -> None:
    matcher = _limited(2, later=0)
    assert matcher.accept(ids_of("a")[0])
    matcher.mask()
    with pytest.raises(RowFailed, match="too complex: limit"):
        matcher.accept(ids_of("b")[0])
    matcher.rollback(1)
    matcher.close()
