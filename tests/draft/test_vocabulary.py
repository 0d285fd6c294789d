"""When two models mean the same by an id: first difference, sizes, padding, tokens added on top."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import DraftError
from paceline.draft import vocabulary
from paceline.draft.vocabulary import Vocabulary, common_ids


def made(pieces: str, head: int | None = None, added: tuple[int, ...] = ()) -> Vocabulary:
    """One letter per id; a space is an id without a token."""
    known = {number: piece for number, piece in enumerate(pieces) if piece != " "}
    return Vocabulary(len(pieces) if head is None else head, known, frozenset(added))


def test_equal_tokenizers_share_the_ids_of_the_smaller_head() -> None:
    assert common_ids(made("abcdef", 16), made("abcdef", 8), "d") == 8
    assert common_ids(made("abcdef", 8), made("abcdef", 16), "d") == 8
    assert common_ids(made("abcdef"), made("abcdef"), "d") == 6


@pytest.mark.parametrize(
    ("ours", "theirs", "number", "shown"),
    [
        ("abcdef", "abXdef", 2, ("'c'", "'X'")),
        ("abcdef", "abdcef", 2, ("'c'", "'d'")),
        ("abcdef", "abc", 3, ("'d'", "no token")),
        ("abc", "abcdef", 3, ("no token", "'d'")),
        ("abc ef", "abcdef", 3, ("no token", "'d'")),
        ("abcXYf", "abcYXf", 3, ("'X'", "'Y'")),
    ],
)
def test_the_first_difference_is_named_with_both_strings_and_sizes(
    ours: str, theirs: str, number: int, shown: tuple[str, str]
) -> None:
    with pytest.raises(DraftError) as caught:
        common_ids(made(ours, 16), made(theirs, 12), "some/drafter")
    message = str(caught.value)
    assert "some/drafter" in message and f"token {number} is {shown[0]}" in message and shown[1] in message
    assert f"{len(ours.replace(' ', ''))} tokens in 16" in message
    assert f"{len(theirs.replace(' ', ''))} tokens in 12" in message


def test_tokens_added_beyond_the_smaller_head_are_let_through() -> None:
    assert common_ids(made("abcd<>", added=(4, 5)), made("abcd"), "d") == 4
    assert common_ids(made("abcd"), made("abcd<>", added=(4, 5)), "d") == 4
    with pytest.raises(DraftError, match="token 4"):
        common_ids(made("abcd<>", added=(5,)), made("abcd"), "d")
    with pytest.raises(DraftError, match="token 4"):
        common_ids(made("abcd<>", added=(4, 5)), made("abcd", 8), "d")


def test_without_a_tokenizer_only_equal_heads_are_taken_for_equal() -> None:
    assert common_ids(Vocabulary(8), made("abcdef", 8), "d") == 8
    assert common_ids(made("abcdef", 8), Vocabulary(8), "d") == 8
    with pytest.raises(DraftError, match=r"cannot be compared.*unknown tokens in 8 logits.*6 tokens in 9"):
        common_ids(Vocabulary(8), made("abcdef", 9), "d")


def test_padding_that_is_written_out_is_no_token() -> None:
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {"a": 0, "b": 1, "[PAD2]": 2, "[PAD7]": 3, "<x>": 4}, get_added_vocab=lambda: {"<x>": 4}
    )
    found = Vocabulary.of(8, tokenizer)
    assert found == Vocabulary(8, {0: "a", 1: "b", 3: "[PAD7]", 4: "<x>"}, frozenset({4}))
    assert Vocabulary.of(8, None).pieces is None


letters = st.text("ab ", min_size=1, max_size=7)


def check_rule(ours: str, theirs: str, heads: tuple[int, int]) -> None:
    """With nothing added on top: accepted exactly if every id stands for the same in both."""
    shared = min(heads)
    fine = ours.rstrip() == theirs.rstrip()
    try:
        assert common_ids(made(ours, heads[0]), made(theirs, heads[1]), "d") == shared
    except DraftError:
        assert not fine
    else:
        assert fine


@given(letters, letters, st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_accepted_if_and_only_if_the_common_ids_agree(ours: str, theirs: str, heads: tuple[int, int]) -> None:
    check_rule(ours, theirs, heads)
    check_rule(ours, ours, heads)


@pytest.mark.parametrize("broken", ["sizes only", "nothing beyond"])
def test_a_careless_comparison_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "nothing beyond":
        monkeypatch.setattr(vocabulary, "_trained", lambda vocabulary, first: ())
        with pytest.raises(AssertionError):
            check_rule("aab", "aa", (3, 2))
    else:
        monkeypatch.setitem(globals(), "common_ids", lambda target, drafter, name: min(target.head, drafter.head))
        with pytest.raises(AssertionError):
            check_rule("ab", "ba", (2, 2))
