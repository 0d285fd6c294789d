"""Which ids a sampled row may draw: top-k, top-p, min-p in that order (spec 13.1). Knows no noise and no greedy row.

Ids are ordered by (logit descending, id ascending). Rows with rarer filters: see ``chains``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from .noise import Array
from .params import DrawParams
from .units import host_sum, host_units, units_of

#: Distances under the largest scaled logit, tried until what lies within holds what a filter asks for.
_LADDER = tuple(math.log(2.0) * bits for bits in (4, 8, 12, 16, 20))


@dataclass(frozen=True)
class HostRow:
    """One sampled row: ``logits`` [N], ``scaled`` = logits / temperature [N], ``peak`` = the largest scaled logit."""

    logits: Array
    scaled: Array
    peak: float

    @classmethod
    def untempered(cls, logits: Array, top: int) -> HostRow:
        """The row at temperature 1; ``top``: a place of its largest logit."""
        return cls(logits, logits, float(logits[top]))

    @property
    def rounding(self) -> float:
        """Bound on what rounding can change in sums and differences of scaled logits that are near the peak."""
        if math.isinf(self.peak):
            return 0.0
        return 4.0 * float(np.spacing(self.logits.dtype.type(abs(self.peak) + 64.0)))

    def weights(self, ids: Array) -> Array:
        """Probabilities of ``ids`` (ascending) relative to the largest one, in the type of the logits."""
        return self.relative(self._at(ids))

    def gaps(self, ids: Array) -> Array:
        """How far ``ids`` (ascending) are below the peak, in the type of the logits."""
        scaled = self._at(ids)
        if math.isfinite(self.peak):
            return np.asarray(scaled.dtype.type(self.peak) - scaled)
        gaps: Array = np.where(scaled == self.peak, scaled.dtype.type(0), scaled.dtype.type(np.inf))
        return gaps

    def _at(self, ids: Array) -> Array:
        return self.scaled if ids.size == self.scaled.size else self.scaled[ids]

    def relative(self, scaled: Array) -> Array:
        """Probabilities of ids with these scaled logits, relative to the largest one."""
        if math.isinf(self.peak):
            scaled = np.where(scaled == self.peak, scaled.dtype.type(0), scaled.dtype.type(-np.inf))
        else:
            scaled = scaled - scaled.dtype.type(self.peak)
        weights: Array = np.exp(scaled)
        return weights

    def within(self, distance: float) -> Array:
        """Places whose scaled logit is at most ``distance`` below the peak, ascending: a prefix of the order."""
        return np.flatnonzero(self.scaled >= self.peak - distance)


def survivors(row: HostRow, top_k: int, top_p: float, min_p: float) -> Array:
    """Places in ``row`` that the filters leave, ascending, int64. Filters that are off: see :class:`DrawParams`."""
    by_mass = 0 < top_p < 1
    if 0 < top_k < row.logits.size:
        ids = first_in_order(row, _holding(row, top_k), top_k)
        if by_mass:
            ids = _shortest_prefix(row, ids, top_p * float(host_sum(host_units(row.weights(ids)))))
    elif by_mass:
        ids = _smallest_mass(row, top_p)
    else:
        ids = row.within(1e-3 - math.log(min_p) + row.rounding) if min_p > 0 else np.arange(row.logits.size)
    return ids[row.weights(ids) >= min_p] if min_p > 0 else ids


def _holding(row: HostRow, k: int) -> Array:
    """A prefix of the order with at least ``k`` places, ascending."""
    for distance in _LADDER:
        ids = row.within(distance)
        if ids.size >= k:
            return ids
    return np.arange(row.logits.size)


def first_in_order(row: HostRow, ids: Array, k: int) -> Array:
    """The first ``k`` of ``ids`` (ascending, at least ``k``) in the order of the module, ascending."""
    surplus = ids.size - k
    if not surplus:
        return ids
    logits = row.logits[ids]
    least = np.partition(logits, surplus)[surplus]
    chosen, ties = logits > least, np.flatnonzero(logits == least)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    first: Array = ids[chosen]
    return first


def _smallest_mass(row: HostRow, top_p: float) -> Array:
    units = host_units(row.relative(row.scaled))
    need = top_p * float(host_sum(units))
    for distance in _LADDER:
        ids = row.within(distance)
        if host_sum(units[ids]) >= need:
            return _shortest_prefix(row, ids, need)
    return _shortest_prefix(row, np.arange(row.logits.size), need)


def _shortest_prefix(row: HostRow, ids: Array, need: float) -> Array:
    """Of ``ids``, a prefix of the order, those before which less than ``need`` units lie; ascending."""
    units = host_units(row.relative(np.sort(row.scaled[ids])[::-1]))
    before = np.cumsum(units, dtype=np.float64) - units
    return first_in_order(row, ids, int(np.count_nonzero(before < need)))


@dataclass(frozen=True)
class Filters:
    """Columns [M, 1] of the first three filters, off as in :class:`DrawParams`."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, params: DrawParams) -> Filters:
        return cls(params.top_k.unsqueeze(1), params.top_p.unsqueeze(1), params.min_p.unsqueeze(1))


def permitted(order: torch.Tensor, weights: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The same for all rows at once, on any device: bool [M, N].

    ``order`` [M, N]: ids in the order of the module; ``weights`` [M, N]: probabilities relative to the largest one.
    """
    count = order.shape[-1]
    top_k = torch.where(filters.top_k > 0, filters.top_k, count)
    within_k = torch.arange(count, device=order.device) < top_k
    units = units_of(weights).gather(-1, order) * within_k
    total = units.cumsum(-1)
    need = filters.top_p.double() * total[:, -1:]
    within_p = (total - units < need) | (filters.top_p <= 0) | (filters.top_p >= 1)
    keep = torch.zeros_like(within_p).scatter(-1, order, within_k & within_p)
    return keep & (weights >= filters.min_p)


def in_order(logits: torch.Tensor) -> torch.Tensor:
    """Ids of each row in the order of the module: int64 [M, N]."""
    return torch.argsort(logits, dim=-1, descending=True, stable=True)
