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
_SORTED_AT_ONCE = 2048


def host_units(weights: Array) -> Array:
    """Probabilities relative to the largest one (any float type) as whole numbers, float64."""
    units: Array = np.rint(weights * weights.dtype.type(UNIT)).astype(np.float64)
    return units


def host_mean_gap(gaps: Array, units: Array) -> float:
    """Mean of ``gaps`` (nats below the largest), weighted by ``units``: [n] arrays of the same ids."""
    return float(np.rint(units * np.where(units > 0, gaps, 0)).sum() / units.sum())


def host_reach(values: Array, units: Array, need: float) -> float:
    """The smallest of ``values`` such that those up to it hold ``need`` units, which all of them hold. No full sort."""
    below = 0.0
    while values.size > _SORTED_AT_ONCE:
        inside = values <= np.median(values[:: values.size // 128])
        mass = units[inside].sum()
        if below + mass < need:
            below += mass
            inside = ~inside
        if inside.all():
            break
        values, units = values[inside], units[inside]
    order = np.argsort(values, kind="stable")
    reached = int(np.searchsorted(units[order].cumsum(), need - below))
    return float(values[order[min(reached, order.size - 1)]])


def gaps_and_weights(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far ids are below the largest of their row, and their probabilities relative to it: [M, N] each."""
    peak = scaled.amax(-1, keepdim=True)
    gaps = torch.where(scaled == peak, 0.0, peak - scaled)
    return gaps, exp(-gaps)


def units_of(weights: torch.Tensor) -> torch.Tensor:
    """:func:`host_units` of a tensor."""
    return torch.round(weights * UNIT).double()


def mean_gap(gaps: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """:func:`host_mean_gap` of each row: [M, N] -> [M, 1]. Ids with no unit are left out."""
    parts = torch.round(units * torch.where(units > 0, gaps.double(), 0.0))
    return parts.sum(-1, keepdim=True) / units.sum(-1, keepdim=True)


def exp(values: torch.Tensor) -> torch.Tensor:
    """Elementwise exponential; on the CPU the one that the host's arrays use."""
    return torch.from_numpy(np.exp(values.numpy())) if values.device.type == "cpu" else torch.exp(values)


def log(values: torch.Tensor) -> torch.Tensor:
    """Elementwise logarithm, likewise."""
    return torch.from_numpy(np.log(values.numpy())) if values.device.type == "cpu" else torch.log(values)
