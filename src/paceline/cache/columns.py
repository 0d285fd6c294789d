"""Per-row values on the device: what a round gathers by row index, and the permanent indices themselves.

It knows requests and rows as records; blocks are the row tables' business.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import torch

from ..core.errors import IntegrityError
from ..core.request import DEVICE_EOS_IDS
from ..core.row import Row
from .uploads import sent

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

#: Columns of one value per row: name -> (dtype, value of a row just admitted).
_COLUMNS: dict[str, tuple[torch.dtype, int | float | bool]] = {
    "pending": (torch.int64, -1),
    "length": (torch.int64, 0),
    "draft_length": (torch.int64, 0),
    "step": (torch.int64, 0),
    "remaining": (torch.int64, 0),
    "live": (torch.bool, False),
    "bad": (torch.bool, False),
    "seed": (torch.int64, 0),
    "temperature": (torch.float32, 0.0),
    "top_p": (torch.float32, 1.0),
    "min_p": (torch.float32, 0.0),
    "top_k": (torch.int64, 0),
    "draft_cap": (torch.int64, 0),
    "limit": (torch.int64, 0),
}


class RowColumns:
    """Columns over R rows and the indices in use. An index belongs to one row from :meth:`acquire_index` to
    :meth:`release_index`; free ones are handed out lowest first.

    Every attribute is a tensor over [R]: ``pending``, ``length``, ``draft_length``, ``step``, ``remaining``, ``top_k``
    (0 = off), ``draft_cap``, ``limit`` (the first position the row may never use) int64; ``seed`` int64, the two's
    complement of the 64-bit seed; ``live``, ``bad`` bool; ``temperature``, ``top_p``, ``min_p`` float32. ``eos_ids``
    [R, 8] int64 is padded with -1. ``history`` [R, max_model_len + 1] int32 holds prompt and used draws (so
    ``history[i, length[i]]`` is the pending token of a decoding row); its last column takes writes that nobody may
    keep. The engine advances the columns directly.
    """

    pending: torch.Tensor
    length: torch.Tensor
    draft_length: torch.Tensor
    step: torch.Tensor
    remaining: torch.Tensor
    live: torch.Tensor
    bad: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    draft_cap: torch.Tensor
    limit: torch.Tensor

    def __init__(self, max_rows: int, max_model_len: int, device: torch.device | str) -> None:
        if max_rows < 1 or max_model_len < 1:
            raise ValueError(f"max_rows and max_model_len must be at least 1, not {max_rows} and {max_model_len}")
        self.max_rows = max_rows
        self.max_model_len = max_model_len
        self.device = torch.device(device)
        for name, (dtype, initial) in _COLUMNS.items():
            setattr(self, name, torch.full((max_rows,), initial, dtype=dtype, device=self.device))
        self.eos_ids = torch.full((max_rows, DEVICE_EOS_IDS), -1, dtype=torch.int64, device=self.device)
        self.history = torch.zeros(max_rows, max_model_len + 1, dtype=torch.int32, device=self.device)
        self._writers = {name: self._writer(getattr(self, name)) for name in (*_COLUMNS, "eos_ids", "history")}
        self._history_written = [0] * max_rows
        self._free_indices = list(range(max_rows))
        self._in_use = [False] * max_rows
        #: The row that fills batches, if one was taken.
        self.padding: int | None = None

    @property
    def free_indices(self) -> int:
        """How many indices are free."""
        return len(self._free_indices)

    @property
    def indices_in_use(self) -> list[int]:
        """Indices in use, ascending."""
        return [index for index, used in enumerate(self._in_use) if used]

    def acquire_index(self) -> int | None:
        """Take the lowest free index, its columns reset; ``None`` if there is none."""
        if not self._free_indices:
            return None
        index = heapq.heappop(self._free_indices)
        self._in_use[index] = True
        self._reset(index)
        return index

    def take_padding(self) -> int:
        """Take the highest free index for good: it fills batches up, is never live and never holds blocks."""
        if not self._free_indices:
            raise IntegrityError("no index is left for the row that fills batches")
        index = max(self._free_indices)
        self._free_indices.remove(index)
        heapq.heapify(self._free_indices)
        self._in_use[index] = True
        self.padding = index
        self._reset(index)
        self._writers["pending"][index] = 0  # an id that every vocabulary has
        return index

    def release_index(self, index: int) -> None:
        """Give an index back. It may be handed out at once: call it only when every round that names it is read."""
        self._require(index)
        self._in_use[index] = False
        self._writers["live"][index] = False
        heapq.heappush(self._free_indices, index)

    def stop(self, index: int) -> None:
        """The row takes no further part: rounds that still name it keep nothing of it."""
        self._require(index)
        self._writers["live"][index] = False

    def write_row(self, row: Row) -> None:
        """Write the constants of ``row.request``, the host mirror and the history (only what it lacks) to the columns.

        A row is live once it has a pending token, until it stopped or used up its budget.
        """
        self._require(row.index)
        request, params, write, index = row.request, row.request.params, self._writers, row.index
        write["temperature"][index] = params.temperature
        write["top_p"][index] = params.top_p
        write["min_p"][index] = params.min_p
        write["top_k"][index] = min(max(params.top_k, 0), _INT32_MAX)
        write["seed"][index] = request.seed if request.seed <= _INT64_MAX else request.seed - 2**64
        write["draft_cap"][index] = request.draft_cap
        write["limit"][index] = row.position_limit
        # ids that no vocabulary can hold are left out: they cannot be drawn
        eos = [token for token in request.eos_ids if token <= _INT32_MAX][:DEVICE_EOS_IDS]
        write["eos_ids"][index] = self._vector(eos + [-1] * (DEVICE_EOS_IDS - len(eos)), torch.int64)
        self.write_mirror(row)

    def write_mirror(self, row: Row) -> None:
        """Write what changes from round to round: pending, length, step, remaining, live, and the history."""
        write, index = self._writers, row.index
        self._require(index)
        write["pending"][index] = row.pending
        write["length"][index] = row.length
        write["step"][index] = row.step
        write["remaining"][index] = row.remaining
        write["live"][index] = row.pending >= 0 and not row.stopped and row.remaining > 0
        self._extend_history(index, row.tokens[self._history_written[index] :])

    def append_history(self, indices: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append each row's tokens to what the host has written of its history."""
        for index, burst in zip(indices, tokens, strict=True):
            self._require(index)
            self._extend_history(index, burst)

    def append_draws(self, indices: torch.Tensor, draws: torch.Tensor, counts: torch.Tensor) -> None:
        """Device form: append the first ``counts`` [B] of ``draws`` [B, W] behind each row's pending token.

        ``indices`` [B] int64. Reads ``length`` as it is before the round advances it; no value reaches the host.
        """
        steps = torch.arange(draws.shape[1], device=self.device)
        places = self.length[indices].unsqueeze(1) + 1 + steps
        used = (steps < counts.unsqueeze(1)) & (places < self.max_model_len)
        places = torch.where(used, places, self.max_model_len)
        self.history[indices.unsqueeze(1), places] = draws.to(torch.int32)

    def _extend_history(self, index: int, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        begin = self._history_written[index]
        end = begin + len(tokens)
        if end > self.max_model_len:
            raise IntegrityError(f"row {index} has {end} tokens, the context holds {self.max_model_len}")
        self._writers["history"][index, begin:end] = self._vector(tokens, torch.int32)
        self._history_written[index] = end

    def _device_is_host(self) -> bool:
        """Whether the host writes the device's memory directly."""
        return self.device.type == "cpu"

    def _writer(self, column: torch.Tensor) -> Any:
        """What values are assigned to: on the CPU the same memory through numpy, which is ten times cheaper."""
        return column.numpy() if self._device_is_host() else column

    def _vector(self, values: Sequence[int], dtype: torch.dtype) -> Sequence[int] | torch.Tensor:
        return values if self._device_is_host() else sent(torch.tensor(values, dtype=dtype), self.device)

    def _reset(self, index: int) -> None:
        for name, (_, initial) in _COLUMNS.items():
            self._writers[name][index] = initial
        self._writers["eos_ids"][index] = -1
        self._history_written[index] = 0

    def _require(self, index: int) -> None:
        if not (0 <= index < self.max_rows and self._in_use[index]):
            raise IntegrityError(f"row index {index} is not in use")

    def _check_indices(self) -> None:
        """Raise :class:`IntegrityError` unless each index is either free, once, or in use."""
        free = sorted(self._free_indices)
        if free != [index for index, used in enumerate(self._in_use) if not used]:
            raise IntegrityError(f"free indices {free} and indices in use {self.indices_in_use} do not add up")
        if free and self._free_indices[0] != free[0]:
            raise IntegrityError("the lowest free index would not be handed out first")
