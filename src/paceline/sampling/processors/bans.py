"""Step 1 of spec 13.1 for one row: bad words, n-grams that must not come back, the thinking budget. Host only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .history import RowHistory
from .settings import ThinkingBudget


class BadWords:
    """Sequences whose last id is banned where the text ends with the others.

    As ``NoBadWordsLogitsProcessor`` of transformers: prompt and output both count, so a word that the prompt begins is
    not completed either. A look-up costs one tuple per distinct length of the sequences.
    """

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self.single = frozenset(word[0] for word in words if len(word) == 1)
        self._by_length: dict[int, dict[tuple[int, ...], set[int]]] = {}
        for word in words:
            if len(word) > 1:
                self._by_length.setdefault(len(word) - 1, {}).setdefault(word[:-1], set()).add(word[-1])

    def banned(self, history: RowHistory, proposals: Sequence[int], place: int) -> list[int]:
        """Ids that would complete a sequence of two or more ids at window position ``place``."""
        found: list[int] = []
        for length, endings in self._by_length.items():
            tail = history.tail(proposals, place, length)
            if tail in endings:
                found.extend(endings[tail])
        return found


class RepeatedNgrams:
    """Ids that would complete an n-gram which the text already holds.

    As ``NoRepeatNGramLogitsProcessor`` of transformers: n-grams of prompt and output count. A look-up and an observed
    token cost one n-gram each; for n = 1 the ban list itself is as long as the set of ids seen.
    """

    def __init__(self, size: int, history: RowHistory) -> None:
        self._size = size
        self._history = history
        self._endings: dict[tuple[int, ...], set[int]] = {}
        tokens = history.tokens
        for end in range(size - 1, len(tokens)):
            self._add(self._endings, tuple(tokens[end - size + 1 : end]), tokens[end])

    @staticmethod
    def _add(endings: dict[tuple[int, ...], set[int]], prefix: tuple[int, ...], token: int) -> None:
        endings.setdefault(prefix, set()).add(token)

    def observe(self, token: int) -> None:
        """``token`` follows the history, which does not hold it yet."""
        prefix = self._history.tail((), 0, self._size - 1)
        if prefix is not None:
            self._add(self._endings, prefix, token)

    def window(self, proposals: Sequence[int]) -> list[list[Collection[int]]]:
        """Banned ids of each of the ``len(proposals) + 1`` positions, as groups."""
        new: dict[tuple[int, ...], set[int]] = {}
        result: list[list[Collection[int]]] = []
        for place in range(len(proposals) + 1):
            prefix = self._history.tail(proposals, place, self._size - 1)
            known: list[Collection[int]] = []
            if prefix is not None:
                known = [tuple(group[prefix]) for group in (self._endings, new) if prefix in group]
                if place < len(proposals):
                    self._add(new, prefix, proposals[place])
            result.append(known)
        return result


class _Block(NamedTuple):
    """Where a text stands: in an open block with ``inside`` tokens, and how much of the next marker it ends with."""

    is_open: bool = False
    inside: int = 0
    matched: int = 0


class Thinking:
    """Counts the tokens of thinking blocks and names the id to force once a budget is spent.

    The end sequence is completed from what of it the text already ends with. An observed token costs O(1).
    """

    def __init__(self, budget: ThinkingBudget, history: RowHistory) -> None:
        self._budget = budget
        self._borders = {ids: _borders(ids) for ids in (budget.start_ids, budget.end_ids)}
        self._state = _Block()
        for token in history.tokens:
            self.observe(token)

    def observe(self, token: int) -> None:
        self._state = self._after(self._state, token)

    def window(self, proposals: Sequence[int]) -> list[int | None]:
        """The id to force at each of the ``len(proposals) + 1`` positions, if any."""
        state = self._state
        forced = [self._forced(state)]
        for token in proposals:
            state = self._after(state, token)
            forced.append(self._forced(state))
        return forced

    def _forced(self, state: _Block) -> int | None:
        spent = state.is_open and state.inside >= self._budget.budget
        return self._budget.end_ids[state.matched] if spent else None

    def _after(self, state: _Block, token: int) -> _Block:
        marker = self._budget.end_ids if state.is_open else self._budget.start_ids
        matched = _advance(marker, self._borders[marker], state.matched, token)
        if matched == len(marker):
            return _Block(is_open=not state.is_open)
        return _Block(state.is_open, state.inside + state.is_open, matched)


def _borders(ids: Sequence[int]) -> list[int]:
    """For each prefix of ``ids`` the longest shorter prefix that it ends with (Knuth, Morris and Pratt)."""
    borders = [0]
    for token in ids[1:]:
        borders.append(_advance(ids, borders, borders[-1], token))
    return borders


def _advance(ids: Sequence[int], borders: Sequence[int], matched: int, token: int) -> int:
    """Longest prefix of ``ids`` that a text ends with, given that of the text without its last ``token``."""
    while matched and ids[matched] != token:
        matched = borders[matched - 1]
    return matched + (ids[matched] == token)
