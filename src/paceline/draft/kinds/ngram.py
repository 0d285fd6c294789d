"""Prompt lookup: find the newest tokens earlier in the text and propose what followed there. Knows only token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import ConfigError
from ..artifact import LoadedDraft, LoadRequest
from ..base import Constraints, DraftRows, DrawPort, TargetView, TokenDrafter

if TYPE_CHECKING:
    from ...cache.tables import RowTables

DEFAULT_TOKENS, MOST_TOKENS = 6, 64
DEFAULT_MAX, DEFAULT_MIN, WIDEST = 3, 1, 32
#: Matches are not followed further back than this many tokens.
LONGEST_MATCH = 24


class NgramIndex:
    """Where each n-gram of a growing text occurs, for several n: the place of the token after it."""

    def __init__(self, sizes: Sequence[int], latest: bool) -> None:
        self._places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in sizes}
        self._latest = latest
        self._done = 0
        self._newest = -1
        self.match = 0

    def update(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that some token of ``tokens`` follows; starts over if the text is not the one known."""
        end = len(tokens) - 1
        if end < self._done or (self._done and tokens[self._done - 1] != self._newest):
            for places in self._places.values():
                places.clear()
            self._done = 0
        if end <= self._done:
            return
        for n, places in self._places.items():
            first = max(self._done, n - 1)
            if first >= end:
                continue
            grams = zip(*(tokens[first + 1 - n + j : end + 1 - n + j] for j in range(n)), strict=True)
            found = zip(grams, range(first + 1, end + 1), strict=False)
            if self._latest:
                places.update(found)
            else:
                for gram, place in found:
                    places.setdefault(gram, place)
        self._done = end
        self._newest = tokens[end - 1]

    def find(self, tokens: Sequence[int]) -> int | None:
        """Place in ``tokens`` of what followed the longest known n-gram that ends the text; ``match`` tells how many
        tokens before it equal the newest ones, which may be more than were looked up."""
        self.match = 0
        for n, places in self._places.items():
            if n < len(tokens):
                place = places.get(tuple(tokens[len(tokens) - n :]))
                if place is not None:
                    self.match = _equal_before(tokens, place, n)
                    return place
        return None


def _equal_before(tokens: Sequence[int], place: int, known: int) -> int:
    """How many tokens before ``place`` equal the last ones, at least ``known``, at most :data:`LONGEST_MATCH`."""
    last = len(tokens) - 1
    for m in range(known, min(LONGEST_MATCH, place)):
        if tokens[place - 1 - m] != tokens[last - m]:
            return m
    return max(known, min(LONGEST_MATCH, place))


class NgramDrafter(TokenDrafter):
    """Looks up the last ``window_max`` down to ``window_min`` tokens, longest first.

    The leftmost occurrence is used, or the ``latest`` one. An id of ``eos_ids`` ends a proposal and is not part of it.
    ``on_device``: look up in the history column of the row tables instead of in an index on the host (``None`` = where
    the target runs on CUDA); the proposals are the same.
    """

    id = "ngram"

    def __init__(
        self,
        window_max: int = DEFAULT_MAX,
        window_min: int = DEFAULT_MIN,
        *,
        latest: bool = False,
        eos_ids: Sequence[int] = (),
        on_device: bool | None = None,
    ) -> None:
        if not 1 <= window_min <= window_max <= WIDEST:
            raise ConfigError(
                "prompt_lookup_max",
                f"windows must satisfy 1 <= prompt_lookup_min <= prompt_lookup_max <= {WIDEST}, "
                f"not {window_min} and {window_max}",
            )
        self.window_max = window_max
        self.window_min = window_min
        self.latest = latest
        self.eos_ids = frozenset(eos_ids)
        self.on_device = on_device

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        eos_ids = self.eos_ids.union(view.eos_ids)
        wanted = view.device.startswith("cuda") if self.on_device is None else self.on_device
        if wanted and view.tables is not None:
            return self._device_rows(view.tables, tuple(sorted(eos_ids)))
        bound = NgramDrafter(self.window_max, self.window_min, latest=self.latest, eos_ids=tuple(eos_ids))
        return TokenDrafter.open(bound, view, draw, constraints)

    def _device_rows(self, tables: RowTables, eos_ids: tuple[int, ...]) -> DraftRows:
        from ...kernels.lookup import LookupRule
        from ._ngram_rows import DeviceLookupRows

        return DeviceLookupRows(tables, LookupRule(self.window_max, self.window_min, self.latest, eos_ids))

    def new_state(self, prompt: Sequence[int]) -> NgramIndex:
        index = NgramIndex(range(self.window_max, self.window_min - 1, -1), self.latest)
        index.update(prompt)
        return index

    def propose(self, state: NgramIndex, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        state.update(tokens)
        place = state.find(tokens)
        if place is None:
            return ()
        copied = tokens[place : place + max_tokens]
        if self.eos_ids.isdisjoint(copied):
            return copied
        return copied[: next(i for i, token in enumerate(copied) if token in self.eos_ids)]

    def matched(self, state: NgramIndex) -> int:
        """One token found again says little; longer matches count as one sound occurrence."""
        return state.match if state.match < 2 else state.match + 1


def load(request: LoadRequest) -> LoadedDraft:
    """Make the drafter from the windows asked for; one that is not given follows the other."""
    lookup_max, lookup_min = request.lookup_max, request.lookup_min
    if lookup_max is None:
        lookup_max = max(DEFAULT_MAX, lookup_min or 0)
    if lookup_min is None:
        lookup_min = min(DEFAULT_MIN, lookup_max)
    tokens = request.settle_tokens(DEFAULT_TOKENS, MOST_TOKENS)
    return LoadedDraft(NgramDrafter(lookup_max, lookup_min, eos_ids=request.view.eos_ids), tokens, "ngram")
