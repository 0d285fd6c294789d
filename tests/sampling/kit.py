"""An independent draw in plain Python, and what the sampling tests measure with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.params import DrawParams

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


@dataclass(frozen=True)
class Case:
    """Parameters of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    step: int = 0

    @property
    def options(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


def params_of(cases: Sequence[Case]) -> DrawParams:
    return DrawParams.of([c.options for c in cases], [c.seed for c in cases], [c.step for c in cases])


def scaled_by(logits: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return logits / logits.dtype.type(np.float32(temperature))


def permitted_ids(logits: np.ndarray, case: Case) -> list[int]:
    """What temperature, top-k, top-p and min-p leave, by the definition, with sums in float64."""
    scaled = scaled_by(logits, case.temperature)
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if 0 < case.top_k < len(order):
        order = order[: case.top_k]
    top = float(scaled[order[0]])
    weight = {i: 1.0 if scaled[i] == top else math.exp(float(scaled[i]) - top) for i in order}
    if 0 < case.top_p < 1:
        need, before, kept = float(np.float32(case.top_p)) * math.fsum(weight.values()), 0.0, []
        for i in order:
            if before >= need:
                break
            kept.append(i)
            before += weight[i]
        order = kept
    return [i for i in order if weight[i] >= float(np.float32(case.min_p))]


def plain_draw(logits: np.ndarray, case: Case) -> int:
    """The token of one row by spec 13.1, 13.4 and 13.5, one id at a time."""
    if case.temperature <= 1e-5:
        return min(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    scaled = scaled_by(logits, case.temperature)
    scores = {i: scaled[i] + gumbel(word(case.seed, case.step, i)) for i in permitted_ids(logits, case)}
    return min(scores, key=lambda i: (-float(scores[i]), i))


def probabilities(logits: np.ndarray, case: Case) -> np.ndarray:
    """The exact distribution that draws of this row must follow."""
    exact = np.zeros(len(logits))
    ids = permitted_ids(logits, case)
    scaled = logits[ids].astype(np.float64) / case.temperature
    exact[ids] = np.exp(scaled - scaled.max())
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
