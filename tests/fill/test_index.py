"""The index of n-grams: the longest match, the nearest of equal ones, and a text that grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.fill.index import LONGEST, Anchor, GramIndex, shared_suffix

_TOKENS = st.lists(st.integers(0, 3), max_size=60)


def _slow_find(tokens: list[int], text: list[int], size: int) -> int:
    """Length of the longest suffix of ``text`` that occurs in ``tokens`` with an id behind it; 0 below ``size``."""
    lengths = [shared_suffix(tokens, place, text, LONGEST) for place in range(1, len(tokens))]
    longest = max(lengths, default=0)
    return longest if longest >= size else 0


@given(st.lists(st.integers(0, 20), max_size=60), _TOKENS, st.integers(2, 4))
def test_a_found_place_is_one_and_none_longer_is_missed_among_few(
    tokens: list[int], text: list[int], size: int
) -> None:
    found = GramIndex(tokens, size).find(text, 0)
    longest = _slow_find(tokens, text, size)
    if found is None:
        assert longest == 0
    else:
        assert tokens[found.place - found.length : found.place] == text[len(text) - found.length :]
        assert size <= found.length <= longest


@given(_TOKENS, st.lists(st.integers(1, 9), max_size=8))
def test_a_text_indexed_in_pieces_is_indexed_as_a_whole(tokens: list[int], cuts: list[int]) -> None:
    growing: list[int] = []
    index = GramIndex(growing, 3)
    rest = list(tokens)
    for cut in cuts:
        growing += rest[:cut]
        del rest[:cut]
        index.extend()
    growing += rest
    index.extend()
    assert index._places == GramIndex(tokens, 3)._places


def test_of_equal_matches_the_nearest_behind_the_last_place_is_taken() -> None:
    tokens = [7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9, 3]
    index = GramIndex(tokens, 3)
    assert [index.find([7, 8, 9], last) for last in (0, 3, 4, 8, 11)] == [
        Anchor(3, 3), Anchor(3, 3), Anchor(7, 3), Anchor(11, 3), Anchor(11, 3)
    ]  # fmt: skip
    assert index.find([7, 8, 9], 12) == Anchor(11, 3), "behind the last occurrence: the one before"
    assert index.find([7, 8, 9], None) == Anchor(11, 3), "without a place: the newest"


def test_a_longer_match_wins_over_a_nearer_one() -> None:
    tokens = [5, 7, 8, 9, 1, 6, 7, 8, 9, 2]
    assert GramIndex(tokens, 3).find([6, 7, 8, 9], 0) == Anchor(9, 4)


def test_the_end_of_the_text_itself_is_no_place_to_go_on_at() -> None:
    tokens = [1, 2, 3, 4, 5]
    assert GramIndex(tokens, 3).find(tokens, None) is None
    assert GramIndex(tokens, 3).find([1, 2], None) is None, "shorter than an n-gram"
