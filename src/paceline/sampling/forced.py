"""Acceptance by coin, so that speeds can be compared without trained drafters. Benchmarks only: no setting reaches it.

Legend: B rows, K proposals.
"""

from __future__ import annotations

import torch

from ..kernels.acceptance import flip_coins
from .noise import uniform

COIN = 7
"""Domain of the coins: no draw uses it (spec 13.4 has 0, 1 and 2)."""


class CoinAcceptance:
    """Accepts a proposal with a probability that may be changed between rounds, captured ones included.

    The coin of a proposal is keyed by the row's seed and the step at which the target draws there, so that equal runs
    accept equally.
    """

    def __init__(self, rate: float, device: torch.device | str) -> None:
        self._rate = torch.tensor(rate, dtype=torch.float64, device=device)

    @property
    def rate(self) -> float:
        """Probability that one proposal is accepted, given that all before it were."""
        return float(self._rate)

    def set_rate(self, rate: float) -> None:
        self._rate.fill_(rate)

    def apply(
        self,
        draws: torch.Tensor,
        proposals: torch.Tensor,
        lengths: torch.Tensor,
        key: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """New draws [B, K + 1]: the proposal where its coin is below the rate, elsewhere never the proposal.

        ``draws`` [B, K + 1], ``proposals`` [B, K], ``lengths`` [B]; ``key``: seed and step of each row [B]. All int64.
        """
        rows, depth = proposals.shape
        if not depth:
            return draws
        if draws.device.type == "cuda":
            return flip_coins(draws, proposals, lengths, key, self._rate, COIN)
        seed, step = key
        places = torch.arange(depth, device=draws.device)
        steps = step.unsqueeze(1) + places
        coins = uniform(seed.repeat_interleave(depth), steps.flatten(), COIN).view(rows, depth)
        own = draws[:, :depth]
        other = torch.where(own > 0, own - 1, own + 1)
        forced = torch.where(coins < self._rate, proposals, torch.where(own == proposals, other, own))
        forced = torch.where(places < lengths.unsqueeze(1), forced, own)
        return torch.cat([forced, draws[:, depth:]], dim=1)


def rate_for(length: float, depth: int) -> float:
    """The rate at which ``depth`` proposals give a mean acceptance length (accepted + bonus) of ``length``.

    Solves ``1 + p + p**2 + ... + p**depth == length`` by bisection; ``1 <= length <= depth + 1``.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_length(middle, depth) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def expected_length(rate: float, depth: int) -> float:
    """Mean acceptance length of ``depth`` proposals at ``rate``."""
    return sum(rate**place for place in range(depth + 1))
