"""Grammars of rows: which proposals a window may hold, the masks of its positions, and where a burst ends (spec 7.13).

Owns one handle per row that has a grammar. A grammar that fails costs its own row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import RowFailed
from ..core.round import RowResult
from ..core.row import Row
from ..grammar.bits import apply_bitmask
from ..grammar.matcher import Matcher
from ..grammar.window import accept_burst, constrained_proposals, cut_at_end, window_masks

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


@dataclass
class RoundMasks:
    """Masks of a round: ``places`` are flat positions, ``masks`` [len(places), ceil(V / 32)] int32 belong to them.
    ``failed``: place of a row in the round -> why its grammar cannot go on."""

    places: list[int]
    masks: NDArray[np.int32] | None
    failed: dict[int, RowFailed]

    def apply(self, logits: torch.Tensor) -> None:
        """Ban what the grammars forbid, in place; ``logits`` [N, V]."""
        if self.masks is not None:
            apply_bitmask(logits, self.masks, self.places)


class RowGrammars:
    """Grammar handles by row index. Rows without a grammar cost a dictionary look-up, rounds without any nothing."""

    def __init__(self) -> None:
        self._matchers: dict[int, Matcher] = {}

    def open_row(self, row: Row) -> None:
        """A row got its index. What it has generated so far (a preempted row) is walked again."""
        if row.request.grammar is not None:
            matcher: Matcher = row.request.grammar.open()
            self._matchers[row.index] = matcher
            accept_burst(matcher, row.tokens[row.prompt_tokens :])

    def close_row(self, row: Row) -> None:
        """Give the row's handle back. Idempotent."""
        matcher = self._matchers.pop(row.index, None)
        if matcher is not None:
            matcher.close()

    def constrain(
        self, rows: Sequence[Row], proposals: list[list[int]], depths: Sequence[int]
    ) -> tuple[list[list[int]], RoundMasks | None]:
        """Proposals that the grammars permit (forced text is proposed for free), and the masks of their windows."""
        if not self._matchers:
            return proposals, None
        kept = list(proposals)
        found = RoundMasks([], None, {})
        masks: list[NDArray[np.int32]] = []
        first = 0
        for place, (row, depth) in enumerate(zip(rows, depths, strict=True)):
            matcher = self._matchers.get(row.index)
            if matcher is not None:
                try:
                    wanted = constrained_proposals(matcher, kept[place], depth) if depth else []
                    window = window_masks(matcher, wanted)
                    kept[place] = wanted[: window.legal_length]
                    # nothing is drawn behind the proposal that ends the grammar: a mask there, which permits EOS
                    # only, could leave a request that bans EOS without any id
                    count = window.legal_length + (window.ends_at is None)
                    found.places.extend(range(first, first + count))
                    masks.append(window.masks[:count])
                except RowFailed as error:
                    kept[place] = []
                    found.failed[place] = error
            first += len(kept[place]) + 1
        if masks:
            found.masks = np.concatenate(masks)
        return kept, found

    def advance(self, rows: Sequence[Row], results: Sequence[RowResult], masks: RoundMasks | None) -> list[RowResult]:
        """Advance the grammars by what was emitted; a burst in which one ends is cut there."""
        if masks is None:
            return list(results)
        advanced = []
        for place, (row, result) in enumerate(zip(rows, results, strict=True)):
            matcher = self._matchers.get(row.index)
            failure = masks.failed.get(place)
            if failure is None and matcher is not None and not result.bad:
                try:
                    result = cut_at_end(matcher, result)
                except RowFailed as error:
                    failure = error
            if failure is not None:
                result = replace(result, emitted=(), accepted=0, saw_eos=False, end_id=None, bad=True, error=failure)
            advanced.append(result)
        return advanced
