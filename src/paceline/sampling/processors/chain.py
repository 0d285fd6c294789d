"""All processors of a row, and their application to the windows of a whole round (spec 7.11, 7.12, 13.1, 13.2).

A row's state is its history: it grows by used draws only, and a window is computed beside it. Knows no engine row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .bans import BadWords, RepeatedNgrams, Thinking
from .dry import DryTable
from .edits import Edits
from .history import RowHistory
from .penalties import PenaltyTable
from .settings import ProcessorSettings


class RowProcessor:
    """Processors of one row and their state, made once from settings and prompt (O(prompt)).

    :meth:`observe` the used draws of each round, never rejected proposals.
    """

    def __init__(self, settings: ProcessorSettings, prompt_ids: Sequence[int]) -> None:
        history = RowHistory(prompt_ids)
        self.settings = settings
        self.history = history
        self._bias_ids = np.array(list(settings.logit_bias), np.int64)
        self._bias_values = np.array(list(settings.logit_bias.values()), np.float64)
        self._words = BadWords(settings.bad_words) if settings.bad_words else None
        size = settings.no_repeat_ngram_size
        self._ngrams = RepeatedNgrams(size, history) if size else None
        self._thinking = Thinking(settings.thinking, history) if settings.thinking is not None else None
        self._penalties = PenaltyTable(settings, history) if settings.penalises else None
        dry = settings.dry
        self._dry = DryTable(dry, history) if dry is not None and not dry.is_neutral else None
        self._observers = [p for p in (self._ngrams, self._thinking, self._penalties, self._dry) if p is not None]

    @classmethod
    def of(cls, settings: ProcessorSettings, prompt_ids: Sequence[int]) -> RowProcessor | None:
        """A processor, or ``None`` where the settings change nothing."""
        return None if settings.is_neutral else cls(settings, prompt_ids)

    def observe(self, tokens: Sequence[int]) -> None:
        """Append used draws to the history; costs O(tokens) beside what :mod:`.dry` says."""
        for token in tokens:
            for part in self._observers:
                part.observe(token)
            self.history.tokens.append(token)

    def add_to(self, edits: Edits, first: int, proposals: Sequence[int]) -> None:
        """Add what happens at the ``len(proposals) + 1`` positions of a window that begins at flat position ``first``.

        Position p is computed for the history followed by ``proposals[:p]``. Changes no state.
        """
        if self._bias_ids.size:
            edits.bias(first, len(proposals) + 1, self._bias_ids, self._bias_values)
        self._add_bans(edits, first, proposals)
        self._add_forced(edits, first, proposals)
        if self._penalties is not None:
            self._penalties.add_to(edits, first, proposals)
        if self._dry is not None:
            for place, amounts in enumerate(self._dry.window(proposals), first):
                for token, amount in amounts.items():
                    edits.subtract(place, token, amount)

    def _add_bans(self, edits: Edits, first: int, proposals: Sequence[int]) -> None:
        history, settings = self.history, self.settings
        for place in range(min(len(proposals) + 1, settings.min_tokens - history.generated(0))):
            edits.ban(first + place, settings.stop_ids)
        if self._words is not None:
            for place in range(len(proposals) + 1):
                edits.ban(first + place, self._words.single)
                edits.ban(first + place, self._words.banned(history, proposals, place))
        if self._ngrams is not None:
            for place, groups in enumerate(self._ngrams.window(proposals), first):
                for ids in groups:
                    edits.ban(place, ids)

    def _add_forced(self, edits: Edits, first: int, proposals: Sequence[int]) -> None:
        if self._thinking is not None:
            for place, token in enumerate(self._thinking.window(proposals), first):
                if token is not None:
                    edits.force(place, token)
        if self.settings.forced_tokens:
            for place in range(len(proposals) + 1):
                token = self.settings.forced_tokens.get(self.history.generated(place))
                if token is not None:
                    edits.force(first + place, token)


def apply_processors(
    logits: torch.Tensor, processors: Sequence[RowProcessor | None], proposals: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Process flat windows in place and return ``logits`` [N, V] float32 or float64, on any device.

    Row i owns the next ``len(proposals[i]) + 1`` positions; a row without processor is left untouched, and if no row
    has one nothing is done at all. A row's result depends on its own logits, settings, history and proposals alone.
    Whoever needs raw logits (13.15) reads them before.
    """
    if not any(processor is not None for processor in processors):
        return logits
    positions = sum(len(proposal) + 1 for proposal in proposals)
    if positions != logits.shape[0]:
        raise ValueError(f"logits hold {logits.shape[0]} positions, the windows {positions}")
    edits = Edits(logits.shape[1])
    first = 0
    for processor, proposal in zip(processors, proposals, strict=True):
        if processor is not None:
            processor.add_to(edits, first, proposal)
        first += len(proposal) + 1
    edits.apply(logits)
    return logits
