"""Keyed noise: Philox4x32-10 words and the Gumbel numbers made of them (spec 13.4).

A number depends on (seed, step, full-vocabulary id, domain) alone, never on shape, device or neighbours.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Domains of the counter (spec 13.4).
TOKEN_NOISE, INVERSE_CDF, XTC = 0, 1, 2

#: No Gumbel number lies outside ``[LEAST_GUMBEL, MOST_GUMBEL]``.
LEAST_GUMBEL, MOST_GUMBEL = -2.82, 22.88

_LOW = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_CHUNK = 16384  # blocks per pass on the CPU: what the passes touch stays in the second-level cache


def philox(seed: torch.Tensor, step: torch.Tensor, ids: torch.Tensor, domain: int = TOKEN_NOISE) -> torch.Tensor:
    """Random words in [0, 2**32), int64 [M, K], for M rows of ``seed`` [M] and ``step`` [M] int64 and their ``ids``.

    ``ids``: int64 [K] for all rows, or [M, K]. ``seed`` holds the 64 bits of the seed in two's complement.
    """
    rows = ids if ids.dim() == 2 else ids.unsqueeze(0)
    blocks = rows >> 2
    lanes = (rows & 3).expand(seed.shape[0], -1)
    words = torch.stack(_keyed(seed, step, blocks, domain), dim=-1)
    return words.gather(-1, lanes.unsqueeze(-1)).squeeze(-1)


def philox_range(seed: torch.Tensor, step: torch.Tensor, count: int, domain: int = TOKEN_NOISE) -> torch.Tensor:
    """:func:`philox` for all ids 0 .. count-1, int64 [M, count]; computes each block of four ids once."""
    blocks = torch.arange((count + 3) // 4, device=seed.device).unsqueeze(0)
    words = torch.stack(_keyed(seed, step, blocks, domain), dim=-1)
    return words.flatten(1)[:, :count]


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Gumbel numbers of ``words`` (int64, any shape): float32, same shape.

    Each logarithm is rounded once to float32, so that no library's float32 logarithm decides a draw.
    """
    if words.device.type == "cpu":
        return torch.from_numpy(host_gumbel(words.numpy()))
    uniform = ((words.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    exponential = (-torch.log1p(-uniform.double())).float()
    return (-torch.log(exponential.double())).float()


def host_gumbel(words: Array) -> Array:
    """:func:`gumbel` of an integer array."""
    exponential = host_exponential(words)
    return (-np.log(exponential.astype(np.float64))).astype(np.float32)


def host_exponential(words: Array) -> Array:
    """``E`` of spec 13.4: exponentially distributed float32 numbers; ``E >= u`` always."""
    uniform = words.astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2.0**-32)
    np.minimum(uniform, np.float32(1 - 2.0**-24), out=uniform)
    return (-np.log1p(-uniform.astype(np.float64))).astype(np.float32)


def host_block_words(seed: int, step: int, blocks: Array, domain: int = TOKEN_NOISE) -> Array:
    """Words of one row for ``blocks`` (uint64 [n], id // 4): uint32 [n, 4], lane last."""
    words = np.empty((blocks.size, 4), np.uint32)
    key = (np.uint64(seed & _LOW), np.uint64(seed >> 32 & _LOW))
    rest = (np.uint64(step & _LOW), np.uint64(domain), np.uint64(0))
    for start in range(0, blocks.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        for lane, values in enumerate(philox4x32_host((blocks[part], *rest), key)):
            words[part, lane] = values
    return words


def host_words(seed: Array, step: Array, ids: Array, domain: int = TOKEN_NOISE) -> Array:
    """Words for n single (seed, step, id) triples given as int64 arrays [n]: uint64 [n]."""
    bits = seed.astype(np.int64).view(np.uint64)
    key = (bits & np.uint64(_LOW), bits >> np.uint64(32))
    plain = ids.astype(np.uint64)
    counter = (plain >> np.uint64(2), step.astype(np.uint64), np.uint64(domain), np.uint64(0))
    lanes = philox4x32_host(counter, key)
    words: Array = np.choose((ids & 3).astype(np.intp), lanes)
    return words


def uniform(seed: torch.Tensor, step: torch.Tensor, domain: int) -> torch.Tensor:
    """One number per row, float64 [M] in (0, 1): ``(x + 0.5) * 2**-32`` of the word x of id 0 (spec 13.6, 13.7)."""
    words = philox(seed, step, torch.zeros(1, dtype=torch.int64, device=seed.device), domain)
    return (words[:, 0].double() + 0.5) * 2.0**-32


def host_uniform(seed: int, step: int, domain: int) -> float:
    """:func:`uniform` of one row on plain integers, which is the cheapest way to a single word."""
    c0, c1, c2, c3 = 0, step & _LOW, domain, 0
    k0, k1 = seed & _LOW, seed >> 32 & _LOW
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _LOW, p0 >> 32 ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return (c0 + 0.5) * 2.0**-32


def _keyed(
    seed: torch.Tensor, step: torch.Tensor, blocks: torch.Tensor, domain: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four lanes, int64 [M, n] each, of ``blocks`` [1, n] or [M, n]."""
    shape = (seed.shape[0], blocks.shape[1])
    column = blocks[:, :1]
    counter = (blocks, (step & _LOW).unsqueeze(1), torch.full_like(column, domain), torch.zeros_like(column))
    key = ((seed & _LOW).unsqueeze(1), (seed >> 32 & _LOW).unsqueeze(1))
    if seed.device.type != "cpu":
        lanes = philox4x32(counter, key)
        return lanes[0].expand(shape), lanes[1].expand(shape), lanes[2].expand(shape), lanes[3].expand(shape)
    host = [part.expand(shape).numpy().astype(np.uint64) for part in (*counter, *key)]
    words = philox4x32_host((host[0], host[1], host[2], host[3]), (host[4], host[5]))
    return tuple(torch.from_numpy(lane.astype(np.int64)) for lane in words)  # type: ignore[return-value]


def philox4x32(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ten rounds on int64 tensors that broadcast and hold 32-bit words. Products wrap, which keeps all their bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW
        c2, c3 = (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0, c1, c2, c3


def philox4x32_host(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Array, Array, Array, Array]:
    """Ten rounds on uint64 arrays or scalars that broadcast; values are 32-bit words. Scalars cost nothing."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    low, half = np.uint64(_LOW), np.uint64(32)
    m0, m1 = (np.uint64(m) for m in _MULTIPLIER)
    w0, w1 = (np.uint64(w) for w in _WEYL)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * m0, c2 * m1
        n0, n2 = p1 >> half, p0 >> half
        n0 ^= c1
        n0 ^= k0
        n2 ^= c3
        n2 ^= k1
        p0 &= low
        p1 &= low
        c0, c1, c2, c3 = n0, p1, n2, p0
        k0, k1 = (k0 + w0) & low, (k1 + w1) & low
    return c0, c1, c2, c3
