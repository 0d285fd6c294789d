"""Suffix decoding: propose what most often followed the longest endings of the text. Knows only token ids.

Looks in the row's own text and, if asked to, in earlier outputs of the same namespace (arXiv 2411.04975). The length of
a proposal follows from the match and from how often the text went on that way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core.batch import Draft, RoundBatch, Window
from ...core.errors import ConfigError
from ...core.row import Row
from ..artifact import LoadedDraft, LoadRequest
from ..base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView

DEFAULT_TOKENS, MOST_TOKENS = 16, 64
#: Sizes of the n-grams by which occurrences are found, and how many of the newest ones are looked at for each.
_SIZES = (8, 4, 2, 1)
_LOOKED_AT = 24
_NOWHERE = -1


@dataclass(frozen=True)
class SuffixSettings:
    """Endings of up to ``max_match`` tokens are matched. A match of m tokens proposes at most ``m * max_spec_factor +
    offset`` tokens, and stops where the proposal's estimated probability falls below ``min_token_prob``.

    ``shared_tokens``: output tokens of finished requests to remember in all namespaces together; 0 = none.
    """

    max_match: int = 24
    max_spec_factor: float = 1.0
    offset: float = 0.0
    min_token_prob: float = 0.1
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        for name, sound in (
            ("max_match", self.max_match >= 1),
            ("max_spec_factor", self.max_spec_factor >= 0),
            ("min_token_prob", 0 <= self.min_token_prob <= 1),
            ("shared_tokens", self.shared_tokens >= 0),
        ):
            if not sound:
                raise ConfigError(name, f"out of range: {getattr(self, name)}")

    def most(self, match: int) -> int:
        """Longest proposal after a match of ``match`` tokens."""
        return int(match * self.max_spec_factor + self.offset)


class Guess(NamedTuple):
    """A proposal, the expected number of its tokens that are right, the length of the match it rests on, and that
    length as the adaptive gate is to take it (:func:`trusted_match`)."""

    score: float
    match: int
    tokens: list[int]
    trust: int = 0


def trusted_match(match: int, agreeing: int, occurrences: int) -> int:
    """A match of ``match`` tokens, weighed by how many of its occurrences go on with the token proposed.

    1 = most do not, 2 = some do not, m + 1 = one sound occurrence of m tokens; several that agree count for more.
    """
    if agreeing < occurrences:
        return 1 if agreeing < 0.6 * occurrences else 2
    return 1 + (match if agreeing == 1 else (3 * match + 1) // 2 if agreeing == 2 else 2 * match + 2)


_NO_GUESS = Guess(0.0, 0, [])


class SuffixIndex:
    """Occurrences of the n-grams of a growing text, newest first: per size the newest place, and links to earlier ones.

    A place is that of the token after the n-gram. Keys are hashes: whoever follows a link compares the tokens.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._newest: dict[int, dict[int, int]] = {n: {} for n in _SIZES}
        self._earlier: dict[int, list[int]] = {n: [] for n in _SIZES}
        self._done = 0
        self._last = -1

    def update(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that some token of ``tokens`` follows; starts over if the text is not the one known."""
        end = len(tokens) - 1
        if end < self._done or (self._done and tokens[self._done - 1] != self._last):
            self._clear()
        if end <= self._done:
            return
        for n in _SIZES:
            newest, earlier = self._newest[n], self._earlier[n]
            for place in range(self._done + 1, end + 1):
                if place < n:
                    earlier.append(_NOWHERE)
                    continue
                key = hash(tuple(tokens[place - n : place]))
                earlier.append(newest.get(key, _NOWHERE))
                newest[key] = place
        self._done = end
        self._last = tokens[end - 1]

    def occurrences(self, n: int, ending: Sequence[int]) -> list[int]:
        """Newest places after the last ``n`` tokens of ``ending``; a few may be others, whose hash is the same."""
        places: list[int] = []
        place = self._newest[n].get(hash(tuple(ending[len(ending) - n :])), _NOWHERE)
        earlier = self._earlier[n]
        while place != _NOWHERE and len(places) < _LOOKED_AT:
            places.append(place)
            place = earlier[place - 1]
        return places


@dataclass(frozen=True)
class Search:
    """What is looked for: the row's ``tokens``, at most ``limit`` tokens after them, none of ``eos_ids``."""

    tokens: Sequence[int]
    limit: int
    settings: SuffixSettings
    eos_ids: frozenset[int]

    def most(self, match: int) -> int:
        return min(self.limit, self.settings.most(match))

    def best(self, index: SuffixIndex, text: Sequence[int], best: Guess = _NO_GUESS) -> Guess:
        """The best guess from ``text``, or ``best`` if none has a higher score. Longer matches win ties."""
        lengths: dict[int, int] = {}
        above = self.settings.max_match + 1
        for n in _SIZES:
            if n >= above or n > len(self.tokens):
                continue
            for place in index.occurrences(n, self.tokens):
                if place not in lengths:
                    lengths[place] = self._match(text, place)
            for match in sorted({m for m in lengths.values() if n <= m < above}, reverse=True):
                if best.score >= self.most(match):
                    break
                guess = self._follow(text, sorted((p for p, m in lengths.items() if m >= match), reverse=True), match)
                if guess.score > best.score:
                    best = guess
            if best.score >= self.most(n - 1):  # shorter matches can score no higher
                break
            above = n
        return best

    def _match(self, text: Sequence[int], place: int) -> int:
        """How many tokens before ``place`` equal the last ones of the row, up to ``max_match``."""
        tokens, last = self.tokens, len(self.tokens) - 1
        most = min(self.settings.max_match, place, last + 1)
        for m in range(most):
            if text[place - 1 - m] != tokens[last - m]:
                return m
        return most

    def _follow(self, text: Sequence[int], places: list[int], match: int) -> Guess:
        """Go where most of ``places`` go on, token by token; on equal counts, where the newest one goes."""
        proposal: list[int] = []
        probability, score, most, trust = 1.0, 0.0, self.most(match), 0
        while len(proposal) < most:
            counts: dict[int, int] = {}
            for place in places:
                if place < len(text) and text[place] >= 0:
                    counts[text[place]] = counts.get(text[place], 0) + 1
            if not counts:
                break
            token = max(counts, key=counts.__getitem__)
            occurrences = sum(counts.values())
            trust = trust or trusted_match(match, counts[token], occurrences)
            probability *= counts[token] / occurrences
            if probability < self.settings.min_token_prob or token in self.eos_ids:
                break
            proposal.append(token)
            score += probability
            places = [place + 1 for place in places if place < len(text) and text[place] == token]
        return Guess(score, match, proposal, trust)


@dataclass(eq=False)
class _Chunk:
    """Some outputs of one namespace, each after a separator that is no token."""

    namespace: str | None
    tokens: list[int]
    index: SuffixIndex


class SharedOutputs:
    """The newest outputs of finished requests, apart by namespace, at most ``capacity`` tokens in all.

    Requests without a namespace share one. What was written to longest ago is dropped, chunk by chunk.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._order: OrderedDict[_Chunk, None] = OrderedDict()
        self._chunks: dict[str | None, list[_Chunk]] = {}
        self.size = 0

    def add(self, namespace: str | None, output: Sequence[int]) -> None:
        """Remember ``output``, or its end if it is long."""
        most = self._capacity // 2
        kept = [_NOWHERE, *output[-most + 1 :]] if most > 1 and output else []
        if not kept:
            return
        own = self._chunks.setdefault(namespace, [])
        if not own or len(own[-1].tokens) + len(kept) > most:
            own.append(_Chunk(namespace, [], SuffixIndex()))
        newest = own[-1]
        newest.tokens.extend(kept)
        newest.index.update(newest.tokens)
        self._order[newest] = None
        self._order.move_to_end(newest)
        self.size += len(kept)
        while self.size > self._capacity:
            self._drop(self._order.popitem(last=False)[0])

    def _drop(self, chunk: _Chunk) -> None:
        self.size -= len(chunk.tokens)
        own = self._chunks[chunk.namespace]
        own.remove(chunk)
        if not own:
            del self._chunks[chunk.namespace]

    def texts(self, namespace: str | None) -> Sequence[_Chunk]:
        """What may be searched for a request of ``namespace``."""
        return self._chunks.get(namespace, ())


class SuffixDrafter(DraftProvider):
    """Makes rows that draft by suffix lookup. Outputs remembered for sharing live as long as the provider."""

    id = "suffix"
    external_tokens = True
    free = True

    def __init__(self, settings: SuffixSettings | None = None, eos_ids: Sequence[int] = ()) -> None:
        self.settings = settings or SuffixSettings()
        self.eos_ids = frozenset(eos_ids)
        self.shared = SharedOutputs(self.settings.shared_tokens)

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        return _SuffixRows(self.settings, self.eos_ids.union(view.eos_ids), self.shared)


class _SuffixRows(DraftRows):
    """One index per row, over its prompt and output."""

    lags = True

    def __init__(self, settings: SuffixSettings, eos_ids: frozenset[int], shared: SharedOutputs) -> None:
        self._settings = settings
        self._eos_ids = eos_ids
        self._shared = shared
        self._indexes: dict[int, SuffixIndex] = {}

    def open_row(self, row: Row, checkpoint: object | None) -> None:
        self._indexes[row.index] = index = SuffixIndex()
        index.update(row.request.prompt_ids)

    def close_row(self, row: Row) -> None:
        if self._indexes.pop(row.index, None) is not None:
            self._shared.add(row.request.namespace, row.tokens[row.prompt_tokens :])

    def draft(self, batch: RoundBatch) -> Draft:
        pairs = zip(batch.rows, batch.depths, strict=True)
        guesses = [self._guess(row, depth) if depth > 0 else _NO_GUESS for row, depth in pairs]
        return Draft.from_lists([guess.tokens for guess in guesses], [guess.trust for guess in guesses])

    def preview(self, batch: RoundBatch) -> Draft | None:
        return self.draft(batch)

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        return None

    def _guess(self, row: Row, depth: int) -> Guess:
        index = self._indexes[row.index]
        index.update(row.tokens)
        search = Search(row.tokens, depth, self._settings, self._eos_ids)
        best = search.best(index, row.tokens)
        for chunk in self._shared.texts(row.request.namespace):
            best = search.best(chunk.index, chunk.tokens, best)
        return best


def load(request: LoadRequest) -> LoadedDraft:
    """Make the drafter; ``request.shared_tokens`` opts in to earlier outputs of the same namespace."""
    tokens = request.settle_tokens(DEFAULT_TOKENS, MOST_TOKENS)
    settings = SuffixSettings(shared_tokens=request.shared_tokens)
    return LoadedDraft(SuffixDrafter(settings, request.view.eos_ids), tokens, "suffix")
