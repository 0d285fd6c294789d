"""Probabilities as whole numbers, so that sums over ids are exact. Knows no filter and no noise.

Probabilities are whole multiples of 2**-33 of the largest one: sums over up to 2**20 ids stay below 2**53, and no order
of summation, batch size or device moves the edge of a top-p, a mean or a draw.
"""

from __future__ import annotations

import numpy as np
import torch

from .noise import Array

UNIT = 2.0**33
#: Ids further below the largest scaled logit than this have no unit.
NEGLIGIBLE = 24.0
_BLOCK = 256
#: Distances in nats, tried until what lies within holds enough.
_LADDER = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def host_units(weights: Array) -> Array:
    """Probabilities relative to the largest one as whole numbers, in the same type: float32 holds them exactly."""
    units: Array = weights * weights.dtype.type(UNIT)
    np.rint(units, out=units)
    return units


def host_sum(units: Array) -> np.float64:
    """Exact sum of whole numbers below 2**33. Stays a float64 when compared with arrays."""
    total: np.float64 = units.sum(dtype=np.float64)
    return total


def host_mean_gap(gaps: Array, units: Array) -> float:
    """Mean of ``gaps`` (nats below the largest), weighted by ``units``: [n] arrays of the same ids and type."""
    if np.isinf(gaps.max()):
        gaps = np.where(units > 0, gaps, gaps.dtype.type(0))
    parts = units * gaps
    return float(host_sum(np.rint(parts, out=parts)) / host_sum(units))


def host_reach(values: Array, units: Array, need: float) -> float:
    """The smallest of ``values`` (at least 0) such that those up to it hold ``need`` units."""
    for reach in _LADDER:
        inside = np.flatnonzero(values <= reach)
        if host_sum(units[inside]) >= need:
            values, units = values[inside], units[inside]
            break
    order = np.argsort(values, kind="stable")
    reached = int(np.searchsorted(units[order].cumsum(dtype=np.float64), need))
    return float(values[order[min(reached, order.size - 1)]])


def host_place(units: Array, share: float) -> int:
    """The first place at which the sum of ``units`` [n] exceeds ``share`` of the whole. Sums by blocks first."""
    whole = units.size - units.size % _BLOCK
    parts = units[:whole].reshape(-1, _BLOCK).sum(1, dtype=np.float64)
    sums = np.append(parts, host_sum(units[whole:])).cumsum()
    need = share * sums[-1]
    block = int(np.searchsorted(sums, need, side="right"))
    inner = units[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    before = sums[block - 1] if block else 0.0
    return block * _BLOCK + int(np.searchsorted(before + inner, need, side="right"))


def gaps_and_weights(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far ids are below the largest of their row, and their probabilities relative to it: [M, N] each."""
    peak = scaled.amax(-1, keepdim=True)
    gaps = torch.where(scaled == peak, 0.0, peak - scaled)
    return gaps, exp(-gaps)


def units_of(weights: torch.Tensor) -> torch.Tensor:
    """:func:`host_units` of a tensor, as float64."""
    return torch.round(weights * UNIT).double()


def mean_gap(gaps: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """:func:`host_mean_gap` of each row: [M, N] -> [M, 1]. Ids with no unit are left out."""
    parts = torch.round(units.to(gaps.dtype) * torch.where(units > 0, gaps, 0.0)).double()
    return parts.sum(-1, keepdim=True) / units.sum(-1, keepdim=True)


def exp(values: torch.Tensor) -> torch.Tensor:
    """Elementwise exponential; on the CPU the one that the host's arrays use."""
    return torch.from_numpy(np.exp(values.numpy())) if values.device.type == "cpu" else torch.exp(values)


def log(values: torch.Tensor) -> torch.Tensor:
    """Elementwise logarithm, likewise."""
    return torch.from_numpy(np.log(values.numpy())) if values.device.type == "cpu" else torch.log(values)
