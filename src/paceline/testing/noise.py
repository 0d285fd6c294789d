"""Keyed noise and the sampler of one token in plain numpy (spec 13.1, 13.4, 13.5), as an oracle for the real one.

Written from the formulas alone; it shares no code with ``paceline.sampling``. Legend: V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..core.request import SamplingParams

TOKEN_DOMAIN = 0

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Ten Philox rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").

    ``counter`` [M, 4] and ``key`` hold 32-bit words; the result [M, 4] too.
    """
    c0, c1, c2, c3 = (counter[:, word].astype(np.uint64) for word in range(4))
    k0, k1 = key
    for _ in range(10):
        product_0 = c0 * np.uint64(_MULTIPLIER_0)
        product_1 = c2 * np.uint64(_MULTIPLIER_1)
        c0, c1 = (product_1 >> _HALF) ^ c1 ^ np.uint64(k0), product_1 & _LOW
        c2, c3 = (product_0 >> _HALF) ^ c3 ^ np.uint64(k1), product_0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def keyed_words(seed: int, step: int, vocab_size: int, domain: int = TOKEN_DOMAIN) -> NDArray[np.uint64]:
    """One 32-bit word per token id [V]: counter (id // 4, step, domain, 0), lane id % 4, key the 64-bit seed."""
    quads = (vocab_size + 3) // 4
    counter = np.zeros((quads, 4), dtype=np.uint64)
    counter[:, 0] = np.arange(quads)
    counter[:, 1] = step
    counter[:, 2] = domain
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return words.reshape(-1)[:vocab_size]


def gumbel_noise(words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """``-log(-log1p(-u))`` with ``u = min((word + 0.5) / 2**32, 1 - 2**-24)``, all in float32."""
    u = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    u = np.minimum(u, np.float32(1.0 - 2.0**-24))
    exponential = -np.log1p(-u)
    return np.asarray(-np.log(exponential), dtype=np.float32)


def filtered(logits: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Scaled logits [V] after temperature, top-k, top-p and min-p in that order; removed ids are ``-inf``."""
    scores = logits / params.temperature
    if 0 < params.top_k < len(scores):
        kept = np.argsort(-scores, kind="stable")[: params.top_k]
        scores = _only(scores, kept)
    if params.top_p < 1.0:
        order = np.argsort(-scores, kind="stable")
        mass_before = np.cumsum(_softmax(scores)[order]) - _softmax(scores)[order]
        scores = _only(scores, order[mass_before < params.top_p])
    if params.min_p > 0.0:
        probabilities = _softmax(scores)
        scores = _only(scores, np.flatnonzero(probabilities >= params.min_p * probabilities.max()))
    return scores


def draw_token(logits: NDArray[np.float64], params: SamplingParams, seed: int, step: int) -> tuple[int, float]:
    """The token drawn at ``step`` from ``logits`` [V], and by how much its score leads the next (``inf`` if alone)."""
    scores: NDArray[Any] = logits
    if not params.greedy:
        scores = filtered(logits, params) + gumbel_noise(keyed_words(seed, step, len(logits)))
    token = int(np.argmax(scores))
    others = np.delete(scores, token)
    return token, float(scores[token] - others.max()) if len(others) else float("inf")


def _only(scores: NDArray[np.float64], kept: NDArray[Any]) -> NDArray[np.float64]:
    masked = np.full_like(scores, -np.inf)
    masked[kept] = scores[kept]
    return masked


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials: NDArray[np.float64] = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum(), dtype=np.float64)
