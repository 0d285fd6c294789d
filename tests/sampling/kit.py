"""Noise on Python integers, distributions of plain draws, and what the sampling tests measure with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from paceline.sampling.params import DrawParams, chains_of, filter_chain
from paceline.testing.plain_draws import Case, hermite, permitted, plain_draw, weights_of

__all__ = ["Case", "hermite", "permitted", "plain_draw"]

LOW = 0xFFFFFFFF


def philox_block(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 on Python integers, written round by round from its definition."""
    x, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * x[2], 1 << 32)
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return x


def word(seed: int, step: int, token: int, domain: int = 0) -> int:
    return philox_block((token // 4, step, domain, 0), (seed & LOW, seed >> 32))[token % 4]


def gumbel(x: int) -> np.float32:
    uniform = min((np.float32(x) + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    exponential = np.float32(-math.log1p(-float(uniform)))
    return np.float32(-math.log(float(exponential)))


def params_of(cases: Sequence[Case], coupling: str = "gumbel") -> DrawParams:
    params = DrawParams.of([c.options for c in cases], [c.seed for c in cases], [c.step for c in cases])
    chains = chains_of([filter_chain(c.options, c.spared) for c in cases])
    return replace(params, chains=chains, coupling=coupling)


def probabilities(logits: np.ndarray, case: Case) -> np.ndarray:
    """The exact distribution that draws of this row must follow; XTC counts by its probability."""
    if 0 < case.xtc_probability < 1:
        never, always = (probabilities(logits, replace(case, xtc_probability=p)) for p in (0.0, 1.0))
        return (1 - case.xtc_probability) * never + case.xtc_probability * always
    exact = np.zeros(len(logits))
    for i, w in weights_of(permitted(logits, case)).items():
        exact[i] = w
    return exact / exact.sum()


def check_distribution(tokens: np.ndarray, exact: np.ndarray, largest_variation: float = 0.02) -> None:
    """Chi-square p > 1e-4 and total variation below the bound; an impossible token fails at once."""
    counts = np.bincount(tokens, minlength=len(exact))
    assert len(counts) == len(exact), "a token outside the vocabulary"
    assert not counts[exact == 0].any(), "an impossible token"
    variation = 0.5 * np.abs(counts / counts.sum() - exact).sum()
    assert variation < largest_variation, f"total variation {variation:.4f}"
    p_value = chi_square(counts, exact)
    assert p_value > 1e-4, f"chi-square p = {p_value:.2e}"


def chi_square(counts: np.ndarray, exact: np.ndarray) -> float:
    """p-value of ``counts``; cells that expect fewer than five are merged into one."""
    expected = exact * counts.sum()
    small = expected < 5
    seen = np.append(counts[~small], counts[small].sum())
    wanted = np.append(expected[~small], expected[small].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    half = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
