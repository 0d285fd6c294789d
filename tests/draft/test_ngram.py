"""Prompt lookup: what is proposed, against a search of the whole text, and the edges of case S29."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draft.kit import VIEW, NoPort, batch_of, row_of

from paceline.core.errors import ConfigError
from paceline.draft.artifact import LoadRequest
from paceline.draft.kinds.ngram import NgramDrafter, NgramIndex, load

Propose = Callable[[NgramDrafter, Sequence[int], int], list[int]]


def once(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    """What a drafter that sees ``tokens`` for the first time proposes."""
    return list(drafter.propose(drafter.new_state(()), tokens, max_tokens))


def search(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    """The definition: longest window first, then the leftmost (or latest) place, cut at the end and before an EOS."""
    for n in range(drafter.window_max, drafter.window_min - 1, -1):
        places = [i + n for i in range(len(tokens) - n) if tokens[i : i + n] == tokens[len(tokens) - n :]]
        if n < len(tokens) and places:
            copied = tokens[(max if drafter.latest else min)(places) :][:max_tokens]
            ends = [i for i, token in enumerate(copied) if token in drafter.eos_ids]
            return list(copied[: ends[0]] if ends else copied)
    return []


def check_lookup(propose: Propose, drafter: NgramDrafter, texts: Sequence[list[int]], max_tokens: int) -> None:
    for tokens in texts:
        assert propose(drafter, tokens, max_tokens) == search(drafter, tokens, max_tokens)


@st.composite
def drafters(draw: st.DrawFn) -> NgramDrafter:
    most = draw(st.integers(1, 5))
    return NgramDrafter(
        most, draw(st.integers(1, most)), latest=draw(st.booleans()), eos_ids=draw(st.sampled_from([(), (0,)]))
    )


TEXTS = st.lists(st.integers(0, 3), max_size=40)


@given(drafters(), st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 8))
@settings(max_examples=200)
def test_proposals_are_those_of_a_search(drafter, texts, max_tokens):
    check_lookup(once, drafter, texts, max_tokens)


@given(drafters(), TEXTS, st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8), st.integers(1, 8))
@settings(max_examples=200)
def test_an_index_that_grows_finds_what_a_new_one_finds(drafter, prompt, bursts, max_tokens):
    state, tokens = drafter.new_state(tuple(prompt)), list(prompt)
    for burst in bursts:
        tokens.extend(burst)
        assert list(drafter.propose(state, tokens, max_tokens)) == search(drafter, tokens, max_tokens)
        assert list(drafter.propose(state, tokens, max_tokens)) == search(drafter, tokens, max_tokens), "asked twice"


@given(drafters(), TEXTS, TEXTS, st.integers(0, 40))
@settings(max_examples=200)
def test_a_text_that_shrank_is_indexed_anew(drafter, before, after, kept):
    state = drafter.new_state(before)
    drafter.propose(state, before, 4)
    tokens = before[:kept]
    assert list(drafter.propose(state, tokens, 4)) == search(drafter, tokens, 4)
    longer = [*tokens, *after]
    assert list(drafter.propose(state, longer, 4)) == search(drafter, longer, 4)


def finds_itself(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    """Broken: also indexes the n-gram that ends the text."""
    return once(drafter, [*tokens, tokens[0]], max_tokens)[:max_tokens] if tokens else []


def shortest_first(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    one = NgramDrafter(drafter.window_min, drafter.window_min, latest=drafter.latest, eos_ids=tuple(drafter.eos_ids))
    return once(one, tokens, max_tokens)


def other_end(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    other = NgramDrafter(
        drafter.window_max, drafter.window_min, latest=not drafter.latest, eos_ids=tuple(drafter.eos_ids)
    )
    return once(other, tokens, max_tokens)


def past_eos(drafter: NgramDrafter, tokens: Sequence[int], max_tokens: int) -> list[int]:
    return once(NgramDrafter(drafter.window_max, drafter.window_min, latest=drafter.latest), tokens, max_tokens)


@pytest.mark.parametrize("wrong", [finds_itself, shortest_first, other_end, past_eos])
def test_wrong_lookups_are_noticed(wrong):
    texts = [[1, 2, 3, 1, 2], [1, 2, 10, 1, 2, 20, 1, 2], [1, 2, 3, 4, 2, 3, 9, 4, 2, 3], [5, 0, 6, 5], [7, 8]]
    with pytest.raises(AssertionError):
        check_lookup(wrong, NgramDrafter(eos_ids=(0,)), texts, 4)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([5], []),
        ([1, 2, 3, 4, 5], []),  # no repeats at all
        ([9] * 500, [9] * 6),  # one token repeated
        ([1, 2, 3, 9, 8, 7], []),  # the suffix occurs only as itself
        ([4, 5, 6, 7, 4, 5], [6, 7, 4, 5]),  # what follows the match reaches the end of the text
        ([4, 5, 0, 6, 7, 4, 5], []),  # the match is followed by EOS
        ([4, 5, 6, 0, 7, 4, 5], [6]),  # EOS inside what follows
        ([3, 3], [3]),
        ([1, 2], []),  # window longer than the text
    ],
)
def test_edges(tokens, expected):
    assert once(NgramDrafter(3, 1, eos_ids=(0,)), tokens, 6) == expected


def test_leftmost_is_the_default_and_latest_an_option():
    tokens = [1, 2, 10, 1, 2, 20, 1, 2]
    assert once(NgramDrafter(), tokens, 1) == [10]
    assert once(NgramDrafter(latest=True), tokens, 1) == [20]


def test_rows_keep_their_own_text_and_stop_at_the_eos_of_the_target():
    rows = NgramDrafter().open(VIEW, NoPort(), NoPort())
    table = [row_of([1, 2, 3, 1, 2], index=4), row_of([1, 2, 9, 0, 1, 2], index=7), row_of([5, 6], index=2)]
    for row in table:
        rows.open_row(row, None)
    draft = rows.draft(batch_of(table, [4, 4, 4]))
    assert draft.to_lists() == [[3, 1, 2], [9], []]
    assert rows.draft(batch_of(table, [0, 1, 4])).to_lists() == [[], [9], []]
    table[2].tokens.extend([8, 5, 6])
    preview = rows.preview(batch_of(table[2:], [2]))
    assert preview is not None and preview.to_lists() == rows.draft(batch_of(table[2:], [2])).to_lists() == [[8, 5]]
    for row in table:
        rows.close_row(row)
    reused = row_of([3, 1], index=4)
    rows.open_row(reused, None)
    assert rows.draft(batch_of([reused], [4])).to_lists() == [[]], "an index forgets the text of its last row"


def test_an_index_only_reads_what_is_new():
    class Watched(list):
        reads = 0

        def __getitem__(self, key):
            taken = super().__getitem__(key)
            Watched.reads += len(taken) if isinstance(key, slice) else 1
            return taken

    tokens = Watched(i * 7 % 1000 for i in range(4000))
    index = NgramIndex((3, 2, 1), latest=False)
    index.update(tokens)
    Watched.reads = 0
    tokens.extend([1, 2, 3])
    index.update(tokens)
    index.find(tokens)
    assert Watched.reads < 60


@pytest.mark.parametrize(
    ("low", "high", "windows"),
    [(None, None, (3, 1)), (None, 5, (5, 1)), (2, None, (3, 2)), (5, None, (5, 5)), (2, 4, (4, 2))],
)
def test_windows_follow_the_settings(low, high, windows):
    loaded = load(LoadRequest(None, VIEW, lookup_min=low, lookup_max=high))
    assert (loaded.provider.window_max, loaded.provider.window_min) == windows


@pytest.mark.parametrize(("low", "high"), [(3, 2), (0, 3), (1, 33), (-1, None)])
def test_impossible_windows_name_the_settings(low, high):
    with pytest.raises(ConfigError, match="prompt_lookup_m"):
        load(LoadRequest(None, VIEW, lookup_min=low, lookup_max=high))


@pytest.mark.parametrize(
    ("tokens", "matches"),
    [
        ([1, 2, 3], [0]),
        ([1, 9, 1], [1]),
        ([1, 2, 9, 1, 2], [3]),
        ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], [6]),  # longer than the windows that were looked up
    ],
)
def test_drafts_tell_how_long_a_match_they_rest_on(tokens: list[int], matches: list[int]) -> None:
    rows = NgramDrafter().open(VIEW, NoPort(), NoPort())
    row = row_of(tokens)
    rows.open_row(row, None)
    assert rows.draft(batch_of([row], [4])).matches == matches
