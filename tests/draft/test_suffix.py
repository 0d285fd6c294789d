"""Suffix lookup: what is proposed, against the definition over all occurrences, and what is shared between requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draft.kit import VIEW, NoPort, batch_of, row_of

from paceline.core.errors import ConfigError
from paceline.draft.artifact import LoadRequest
from paceline.draft.kinds import suffix
from paceline.draft.kinds.suffix import (
    Guess,
    Search,
    SharedOutputs,
    SuffixDrafter,
    SuffixIndex,
    SuffixSettings,
    load,
    trusted_match,
)

Best = Callable[[Search], Guess]


def indexed(search: Search) -> Guess:
    index = SuffixIndex()
    index.update(search.tokens)
    return search.best(index, search.tokens)


def by_definition(search: Search) -> Guess:
    """Every ending and all its occurrences; go where most go on, else where the newest does; the best score wins."""
    tokens, rules = list(search.tokens), search.settings
    best = Guess(0.0, 0, [])
    for match in range(min(rules.max_match, len(tokens) - 1), 0, -1):
        ending = tokens[len(tokens) - match :]
        places = [p for p in range(len(tokens) - 1, match - 1, -1) if tokens[p - match : p] == ending]
        proposal: list[int] = []
        probability, score = 1.0, 0.0
        while len(proposal) < min(search.limit, int(match * rules.max_spec_factor + rules.offset)):
            places = [p for p in places if p < len(tokens)]
            counts = Counter(tokens[p] for p in places)
            if not counts:
                break
            token = max(counts, key=lambda t: (counts[t], max(p for p in places if tokens[p] == t)))
            probability *= counts[token] / len(places)
            if probability < rules.min_token_prob or token in search.eos_ids:
                break
            proposal.append(token)
            score += probability
            places = [p + 1 for p in places if tokens[p] == token]
        if score > best.score:
            best = Guess(score, match, proposal)
    return best


def check_best(best: Best, search: Search) -> None:
    found, expected = best(search), by_definition(search)
    assert found.tokens == expected.tokens
    assert found.score == pytest.approx(expected.score)


RULES = st.builds(
    SuffixSettings,
    max_match=st.sampled_from([1, 3, 8, 24]),
    max_spec_factor=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    offset=st.sampled_from([-1.0, 0.0, 1.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
)
TEXTS = st.lists(st.integers(0, 3), max_size=24)  # no n-gram occurs more often than is looked at
SEARCHES = st.builds(Search, TEXTS, st.integers(1, 16), RULES, st.sampled_from([frozenset(), frozenset({0})]))


@given(SEARCHES)
@settings(max_examples=400)
def test_proposals_are_those_of_the_definition(search):
    check_best(indexed, search)


@given(TEXTS, st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8), st.integers(0, 24))
@settings(max_examples=200)
def test_an_index_that_grows_or_starts_over_equals_a_new_one(prompt, bursts, kept):
    index, tokens = SuffixIndex(), list(prompt)
    for burst in [*bursts, None]:
        tokens = tokens[:kept] if burst is None else [*tokens, *burst]
        index.update(tokens)
        search = Search(tokens, 8, SuffixSettings(), frozenset())
        assert search.best(index, tokens) == indexed(search)


def longest_only(search: Search) -> Guess:
    """Broken: takes the longest match that proposes anything, whatever its score."""
    tokens = search.tokens
    for match in range(min(search.settings.max_match, len(tokens) - 1), 0, -1):
        places = [p for p in range(len(tokens) - 1, match - 1, -1) if tokens[p - match : p] == tokens[-match:]]
        guess = search._follow(tokens, places, match)
        if guess.tokens:
            return guess
    return Guess(0.0, 0, [])


def any_length(search: Search) -> Guess:
    """Broken: proposes as much after a short match as after a long one."""
    return indexed(replace(search, settings=replace(search.settings, offset=99)))


def never_unsure(search: Search) -> Guess:
    """Broken: goes on however improbable the proposal has become."""
    return indexed(replace(search, settings=replace(search.settings, min_token_prob=0)))


def past_eos(search: Search) -> Guess:
    return indexed(replace(search, eos_ids=frozenset()))


#: One ending, eleven ways to go on.
SPREAD = [token for i in range(3, 14) for token in (1, 2, i)] + [1, 2]
#: Two ways to go on after the last two tokens, mostly one way after the last.
UNSURE = [1, 2, 20, 21, 22, 23, 24, 1, 2, 40, 41, 42, 43, 44, *[9, 2, 30, 31, 32, 33] * 8, 1, 2]
TEETH = [
    Search([1, 2, 3, 4, 5, 1], 16, SuffixSettings(), frozenset()),
    Search(SPREAD, 16, SuffixSettings(), frozenset()),
    Search([1, 0, 3, 4, 1], 16, SuffixSettings(), frozenset({0})),
    Search(UNSURE, 16, SuffixSettings(offset=3), frozenset()),
]


def test_the_definition_holds_where_wrong_lookups_differ():
    for search in TEETH:
        check_best(indexed, search)


@pytest.mark.parametrize("wrong", [longest_only, any_length, never_unsure, past_eos])
def test_wrong_lookups_are_noticed(wrong):
    def all_of_them() -> None:
        for search in TEETH:
            check_best(wrong, search)

    with pytest.raises(AssertionError):
        all_of_them()


def propose(tokens: Sequence[int], limit: int = 16, **changes: float) -> list[int]:
    return indexed(Search(tokens, limit, SuffixSettings(**changes), frozenset({0}))).tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([5], []),
        ([1, 2, 3, 4, 5], []),  # no repeats at all
        ([1, 2, 3, 9, 8, 7], []),  # the ending occurs only as itself
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1]),  # as many tokens as matched
        ([2, 5, 2, 6, 2, 6, 2], [6, 2]),  # the more frequent way to go on
        ([2, 0, 5, 2], []),  # EOS follows
        ([4, 5, 6, 0, 7, 4, 5], [6]),  # EOS inside what follows
    ],
)
def test_edges(tokens, expected):
    assert propose(tokens) == expected


def test_one_token_repeated_is_proposed_up_to_the_limit():
    assert propose([9] * 500, limit=16) == [9] * 16


def test_the_limit_and_the_factor_bound_a_proposal():
    text = [*range(10, 30), 1, *range(10, 22)]
    assert propose(text) == [22, 23, 24, 25, 26, 27, 28, 29, 1, 10, 11, 12]
    assert propose(text, limit=3) == [22, 23, 24]
    assert propose(text, max_spec_factor=0.25) == [22, 23, 24]


def test_a_frequent_ending_costs_a_bounded_search():
    tokens = [7, 1] * 4000
    index = SuffixIndex()
    index.update(tokens)
    for n in suffix._SIZES:
        assert len(index.occurrences(n, tokens)) <= suffix._LOOKED_AT


def test_rows_are_apart_and_forget_the_text_of_the_row_before():
    rows = SuffixDrafter().open(VIEW, NoPort(), NoPort())
    table = [row_of([1, 2, 3, 1, 2], index=4), row_of([5, 6], index=2)]
    for row in table:
        rows.open_row(row, None)
    assert rows.draft(batch_of(table, [4, 4])).to_lists() == [[3, 1], []]
    assert rows.draft(batch_of(table, [1, 0])).to_lists() == [[3], []]
    table[1].tokens.extend([8, 5, 6])
    preview = rows.preview(batch_of(table[1:], [1]))
    assert preview is not None and preview.to_lists() == rows.draft(batch_of(table[1:], [1])).to_lists() == [[8]]
    rows.close_row(table[0])
    reused = row_of([3, 1], index=4)
    rows.open_row(reused, None)
    assert rows.draft(batch_of([reused], [4])).to_lists() == [[]]


def later_proposal(drafter: SuffixDrafter, first: str | None, second: str | None) -> list[int]:
    """What a request of namespace ``second`` is offered after one of ``first`` has ended."""
    rows = drafter.open(VIEW, NoPort(), NoPort())
    earlier = row_of([90], [11, 12, 13, 14, 15], namespace=first)
    rows.open_row(earlier, None)
    rows.close_row(earlier)
    later = row_of([91, 11, 12, 13], namespace=second)
    rows.open_row(later, None)
    return rows.draft(batch_of([later], [8])).to_lists()[0]


def check_scopes(make: Callable[[], SuffixDrafter]) -> None:
    assert later_proposal(make(), "a", "a") == [14, 15]
    assert later_proposal(make(), None, None) == [14, 15]
    assert later_proposal(make(), "a", "b") == []
    assert later_proposal(make(), "a", None) == []
    assert later_proposal(make(), None, "a") == []


def test_outputs_are_shared_within_a_namespace_only():
    check_scopes(lambda: SuffixDrafter(SuffixSettings(shared_tokens=1000)))


def test_sharing_across_namespaces_is_noticed():
    class Leaky(SharedOutputs):
        def add(self, namespace, output):
            super().add("all", output)

        def texts(self, namespace):
            return super().texts("all")

    def make() -> SuffixDrafter:
        drafter = SuffixDrafter(SuffixSettings(shared_tokens=1000))
        drafter.shared = Leaky(1000)
        return drafter

    with pytest.raises(AssertionError):
        check_scopes(make)


def test_nothing_is_shared_unless_asked_for():
    assert later_proposal(SuffixDrafter(), "a", "a") == []
    assert later_proposal(load(LoadRequest(None, VIEW)).provider, "a", "a") == []
    assert later_proposal(load(LoadRequest(None, VIEW, shared_tokens=100)).provider, "a", "a") == [14, 15]


def test_prompts_are_not_shared():
    drafter = SuffixDrafter(SuffixSettings(shared_tokens=1000))
    rows = drafter.open(VIEW, NoPort(), NoPort())
    secret = row_of([11, 12, 13, 14], [50], namespace="a")
    rows.open_row(secret, None)
    rows.close_row(secret)
    later = row_of([91, 11, 12, 13], namespace="a")
    rows.open_row(later, None)
    assert rows.draft(batch_of([later], [8])).to_lists() == [[]]


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.lists(st.integers(1, 9), max_size=40)), max_size=20),
)
@settings(max_examples=100)
def test_shared_outputs_are_bounded_and_the_newest_stays(capacity, outputs):
    shared = SharedOutputs(capacity)
    for namespace, output in outputs:
        shared.add(namespace, output)
        held = [chunk for name in ("a", "b", None) for chunk in shared.texts(name)]
        assert sum(len(chunk.tokens) for chunk in held) == shared.size <= capacity
        if 0 < len(output) < capacity // 2:
            assert shared.texts(namespace)[-1].tokens[-len(output) :] == output
    assert set(shared._chunks) == {chunk.namespace for chunk in shared._order}


@pytest.mark.parametrize(
    ("name", "value"), [("max_match", 0), ("max_spec_factor", -1.0), ("min_token_prob", 1.5), ("shared_tokens", -1)]
)
def test_impossible_settings_are_named(name, value):
    with pytest.raises(ConfigError, match=name):
        SuffixSettings(**{name: value})


@pytest.mark.parametrize(
    ("match", "agreeing", "occurrences", "trusted"),
    [(5, 1, 2, 1), (5, 2, 3, 2), (5, 1, 1, 6), (5, 2, 2, 9), (5, 3, 3, 13), (1, 1, 1, 2), (1, 4, 4, 5)],
)
def test_a_match_is_trusted_by_how_many_occurrences_agree(
    match: int, agreeing: int, occurrences: int, trusted: int
) -> None:
    assert trusted_match(match, agreeing, occurrences) == trusted


def test_drafts_tell_what_they_rest_on():
    once, torn = [1, 2, 3, 4, 9, 1, 2, 3], [7, 1, 5, 1, 6, 1]
    provider = SuffixDrafter()
    for tokens, trusted in ((once, 4), (torn, 1), ([1, 2, 3], 0)):
        rows = provider.open(VIEW, NoPort(), NoPort())
        row = row_of(tokens)
        rows.open_row(row, None)
        draft = rows.draft(batch_of([row], [8]))
        assert draft.matches == [trusted]
        assert bool(draft.to_lists()[0]) == bool(trusted)
