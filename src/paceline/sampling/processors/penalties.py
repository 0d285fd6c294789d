"""Repetition, presence and frequency penalties of one row: which ids, with which numbers (spec 13.1, step 2).

Repetition: Keskar et al. 2019 (CTRL), section 4.1, in the form of transformers (positive logits divided, others
multiplied) over prompt and output. Presence and frequency: the formula of the OpenAI API, ``logit - count * frequency -
(count > 0) * presence``, over the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .edits import Array, Edits
from .history import RowHistory
from .settings import ProcessorSettings


class _Counts:
    """How often an id stands in the penalty window, and how often in its output part."""

    __slots__ = ("output", "total")

    def __init__(self, total: int = 0, output: int = 0) -> None:
        self.total = total
        self.output = output


class PenaltyTable:
    """One slot per id that the penalties touch, kept up to date token by token.

    An observed token costs O(1) (amortised), a window O(ids touched) per position: each of these logits changes.
    """

    def __init__(self, settings: ProcessorSettings, history: RowHistory) -> None:
        self._settings = settings
        self._history = history
        self._repeats = settings.repetition_penalty != 1
        self._window = settings.penalty_window
        self._slots: dict[int, int] = {}
        self._counts: list[_Counts] = []
        self._ids: Array = np.empty(0, np.int64)
        self._factors: Array = np.empty(0, np.float64)
        self._amounts: Array = np.empty(0, np.float64)
        if self._repeats:
            self._read_prompt(history.tokens[-self._window :] if self._window else history.tokens)

    def _read_prompt(self, tokens: Sequence[int]) -> None:
        ids, counts = np.unique(np.array(tokens, np.int64), return_counts=True)
        self._ids = ids
        self._factors = np.full(ids.size, float(self._settings.repetition_penalty))
        self._amounts = np.zeros(ids.size)
        self._counts = [_Counts(total) for total in counts.tolist()]
        self._slots = {token: slot for slot, token in enumerate(ids.tolist())}

    def observe(self, token: int) -> None:
        """``token`` follows the history, which does not hold it yet."""
        self._change(token, 1, 1)
        left = self._leaving((), 0)
        if left is not None:
            self._change(left[0], -1, -left[1])

    def add_to(self, edits: Edits, first: int, proposals: Sequence[int]) -> None:
        """Add the penalties of all positions of a window whose first is flat position ``first``."""
        new = [token for token in dict.fromkeys(proposals) if token not in self._slots]
        used, width = len(self._counts), len(proposals) + 1
        factors, amounts = np.ones((width, used + len(new))), np.zeros((width, used + len(new)))
        factors[:, :used] = self._factors[:used]
        amounts[:, :used] = self._amounts[:used]
        slots = {token: used + place for place, token in enumerate(new)}
        changed: dict[int, _Counts] = {}
        for place, token in enumerate(proposals):
            left = self._leaving(proposals, place)
            for moved, sign, is_output in ((token, 1, 1), *([(left[0], -1, left[1])] if left else [])):
                slot = self._slots.get(moved, slots.get(moved, -1))
                if slot not in changed:
                    known = self._counts[slot] if slot < used else _Counts()
                    changed[slot] = _Counts(known.total, known.output)
                counts = changed[slot]
                counts.total += sign
                counts.output += sign * is_output
                factors[place + 1 :, slot], amounts[place + 1 :, slot] = self._numbers(counts)
        edits.penalise(first, np.concatenate([self._ids[:used], np.array(new, np.int64)]), factors, amounts)

    def _leaving(self, proposals: Sequence[int], place: int) -> tuple[int, int] | None:
        """Token that the text pushes out of the penalty window by growing at ``place``, and whether it is output."""
        index = len(self._history.tokens) + place - self._window
        if not self._window or index < 0:
            return None
        is_output = int(index >= self._history.prompt_length)
        if not is_output and not self._repeats:
            return None
        return self._history.token_at(proposals, index), is_output

    def _numbers(self, counts: _Counts) -> tuple[float, float]:
        settings = self._settings
        factor = float(settings.repetition_penalty) if counts.total else 1.0
        amount = settings.frequency_penalty * counts.output + settings.presence_penalty if counts.output else 0.0
        return factor, amount

    def _change(self, token: int, total: int, output: int) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._new_slot(token)
        counts = self._counts[slot]
        counts.total += total
        counts.output += output
        if counts.total:
            self._factors[slot], self._amounts[slot] = self._numbers(counts)
        else:
            self._drop(slot, token)

    def _new_slot(self, token: int) -> int:
        slot = self._slots[token] = len(self._counts)
        if slot == self._ids.size:
            for name in ("_ids", "_factors", "_amounts"):
                array: Array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros(max(64, slot), array.dtype)]))
        self._counts.append(_Counts())
        self._ids[slot] = token
        return slot

    def _drop(self, slot: int, token: int) -> None:
        """Forget an id that left the penalty window; the last slot takes its place."""
        last = len(self._counts) - 1
        for array in (self._ids, self._factors, self._amounts):
            array[slot] = array[last]
        self._slots[int(self._ids[slot])] = slot
        del self._slots[token]
        self._counts[slot] = self._counts[last]
        self._counts.pop()
