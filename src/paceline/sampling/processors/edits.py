"""Changes to flat logits, collected on the host and applied to a tensor of any device in one go. Knows no history."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Edits:
    """What is to happen to logits [N, V]; ``vocab_size`` V. Ids at or past V have no logit and are left out.

    Adding order is free: :meth:`apply` goes by spec 13.1, bias, bans, forcing, penalties, DRY. Per position every id is
    added at most once to bias, penalties and DRY each.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._bias: list[tuple[Array, Array]] = []
        self._bans: list[int] = []
        self._forced: dict[int, int] = {}
        self._penalties: list[tuple[Array, Array, Array]] = []
        self._dry: list[tuple[int, float]] = []

    def bias(self, first: int, width: int, ids: Array, values: Array) -> None:
        """Add ``values`` [n] to the logits of ``ids`` [n] at ``width`` positions from ``first``."""
        inside = ids < self.vocab_size
        places = first + np.arange(width)[:, None]
        self._bias.append(((places * self.vocab_size + ids[inside]).ravel(), np.tile(values[inside], width)))

    def ban(self, place: int, ids: Collection[int]) -> None:
        """Set the logits of ``ids`` at one position to -inf."""
        start = place * self.vocab_size
        self._bans.extend(start + token for token in ids if token < self.vocab_size)

    def force(self, place: int, token: int) -> None:
        """Allow ``token`` alone at one position."""
        if token < self.vocab_size:
            self._forced[place] = token

    def penalise(self, first: int, ids: Array, factors: Array, amounts: Array) -> None:
        """At W positions from ``first``: ``x -> (x / factor if x > 0 else x * factor) - amount`` for ``ids`` [n].

        ``factors`` and ``amounts`` [W, n].
        """
        if ids.size and ids.max() >= self.vocab_size:
            inside = ids < self.vocab_size
            ids, factors, amounts = ids[inside], factors[:, inside], amounts[:, inside]
        places = first + np.arange(len(factors))[:, None]
        self._penalties.append(((places * self.vocab_size + ids).ravel(), factors.ravel(), amounts.ravel()))

    def subtract(self, place: int, token: int, amount: float) -> None:
        """Take the DRY ``amount`` from one logit."""
        if token < self.vocab_size:
            self._dry.append((place * self.vocab_size + token, amount))

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor) -> None:
        """Change ``logits`` [N, V] in place. All indices and numbers travel to its device in one tensor each."""
        if not logits.is_contiguous():
            packed = logits.contiguous()
            self.apply(packed)
            logits.copy_(packed)
            return
        flat = logits.view(-1)
        bias, bans, touched, dry = self._indices(logits.device)
        added, factors, amounts, taken = self._numbers(logits)
        if len(bias):
            flat[bias] += added
        if len(bans):
            flat[bans] = -torch.inf
        if self._forced:
            self._apply_forced(logits)
        if len(touched):
            values = flat[touched]
            flat[touched] = torch.where(values > 0, values / factors, values * factors) - amounts
        if len(dry):
            flat[dry] -= taken

    def _indices(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Flat places of biased, banned, penalised and DRY logits."""
        parts = [
            _joined([places for places, _ in self._bias], np.int64),
            np.array(self._bans, np.int64),
            _joined([places for places, _, _ in self._penalties], np.int64),
            np.array([place for place, _ in self._dry], np.int64),
        ]
        return _moved(parts, device, torch.int64)

    def _numbers(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Biases, factors, amounts and DRY amounts in the type of the logits."""
        parts = [
            _joined([values for _, values in self._bias], np.float64),
            _joined([factors for _, factors, _ in self._penalties], np.float64),
            _joined([amounts for _, _, amounts in self._penalties], np.float64),
            np.array([amount for _, amount in self._dry], np.float64),
        ]
        return _moved(parts, logits.device, logits.dtype)

    def _apply_forced(self, logits: torch.Tensor) -> None:
        """The forced id gets 0, all others -inf; a row that is not finite stays so, for its draw to see."""
        places = torch.tensor(list(self._forced), dtype=torch.int64, device=logits.device)
        tokens = torch.tensor(list(self._forced.values()), dtype=torch.int64, device=logits.device)
        peak = logits[places].amax(-1)
        broken = torch.isnan(peak) | (peak == torch.inf)
        logits[places] = -torch.inf
        logits[places, tokens] = torch.where(broken, torch.nan, 0.0).to(logits.dtype)


def _joined(parts: list[Array], dtype: Any) -> Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _moved(parts: list[Array], device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    if device.type == "cpu":
        return tuple(torch.from_numpy(part).to(dtype) for part in parts)
    whole = torch.from_numpy(np.concatenate(parts)).to(dtype).to(device)
    ends = np.cumsum([part.size for part in parts]).tolist()
    return tuple(whole[end - part.size : end] for part, end in zip(parts, ends, strict=True))
