"""All filters of rows that ask for the rarer ones (spec 13.1): typical-p, XTC, and both orders. Knows no noise of ids.

The order is top-k, top-p, min-p, typical-p, XTC on tempered logits; with the temperature last it is top-p, min-p, XTC,
top-k on untempered ones. Each filter sees the probabilities of what the ones before it left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from .filters import Filters, HostRow, first_in_order, in_order, permitted, survivors
from .noise import XTC, Array, host_uniform, uniform
from .params import DrawParams, FilterChain
from .tone import Tone, tone_scores
from .units import gaps_and_weights, host_mean_gap, host_reach, host_sum, host_units, mean_gap, units_of


def crosses(chain: FilterChain, seed: int, step: int) -> bool:
    """Whether XTC acts at this step: its uniform number is shared by drafter and target (spec 13.7)."""
    return chain.xtc_probability > 0 and host_uniform(seed, step, XTC) < chain.xtc_probability


def chain_survivors(row: HostRow, chain: FilterChain, crossed: bool) -> Array:
    """Places that the chain leaves, ascending, int64. ``row`` is untempered if the temperature comes last."""
    early_k, late_k = (0, chain.top_k) if chain.temperature_last else (chain.top_k, 0)
    ids = survivors(row, early_k, chain.top_p, chain.min_p)
    if chain.typical_p < 1:
        ids = _typical(row, ids, chain.typical_p)
    if crossed:
        ids = np.delete(ids, np.searchsorted(ids, top_choices(row, ids, chain)))
    return first_in_order(row, ids, late_k) if 0 < late_k < ids.size else ids


def _typical(row: HostRow, ids: Array, mass: float) -> Array:
    """Locally typical sampling (Meister et al., "Locally Typical Sampling", TACL 2023): ids whose -log p is nearest to
    the entropy, just enough of them to hold ``mass``, and all that are equally near.

    -log p and entropy are compared as distances below the largest logit, which differ from both by the same constant.
    """
    units, gaps = host_units(row.weights(ids)), row.gaps(ids)
    distances = gaps - np.float64(host_mean_gap(gaps, units))
    np.abs(distances, out=distances)
    edge = host_reach(distances, units, mass * float(host_sum(units)))
    typical: Array = ids[(distances <= edge) & (units > 0)]
    return typical


def top_choices(row: HostRow, ids: Array | None, chain: FilterChain) -> Array:
    """What XTC, "exclude top choices", drops: of the ``ids`` (ascending, ``None`` = all) that have at least the
    threshold's probability, all but the last in the order and the spared ones."""
    units = host_units(row.relative(row.scaled) if ids is None else row.weights(ids))
    need = chain.xtc_threshold * host_sum(units)
    places = np.flatnonzero(units >= units.dtype.type(need * (1 - 1e-6)))  # about; then exactly
    places = places[(units[places] >= need) & (units[places] > 0)]
    tall = places if ids is None else ids[places]
    if tall.size < 2:
        return tall[:0]
    logits = row.logits[tall]
    last = tall[np.flatnonzero(logits == logits.min())[-1]]
    dropped: Array = tall[(tall != last) & ~np.isin(tall, chain.xtc_spared)]
    return dropped


@dataclass(frozen=True)
class _Columns:
    """Columns [M, 1] of all rows, those of ``DrawParams`` with the chains laid over them."""

    early: Filters
    late_k: torch.Tensor
    typical_p: torch.Tensor
    xtc_probability: torch.Tensor
    xtc_threshold: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, params: DrawParams, chains: tuple[FilterChain | None, ...]) -> _Columns:
        device = params.temperature.device

        def column(values: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device).unsqueeze(1)

        none = FilterChain()
        full = [chain or none for chain in chains]
        own = column((chain is not None for chain in chains), torch.bool)
        last = column((chain.temperature_last for chain in full), torch.bool)
        top_k = column((chain.top_k for chain in full), torch.int64)
        plain = Filters.of(params)
        return cls(
            early=Filters(
                torch.where(own, torch.where(last, 0, top_k), plain.top_k),
                torch.where(own, column((chain.top_p for chain in full), torch.float32), plain.top_p),
                torch.where(own, column((chain.min_p for chain in full), torch.float32), plain.min_p),
            ),
            late_k=torch.where(last, top_k, 0),
            typical_p=column((chain.typical_p for chain in full), torch.float64),
            xtc_probability=column((chain.xtc_probability for chain in full), torch.float64),
            xtc_threshold=column((chain.xtc_threshold for chain in full), torch.float64),
            last=last,
        )


def permitted_rows(logits: torch.Tensor, scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Which ids of all rows at once may be drawn: bool [M, N] for ``logits`` and ``scaled`` [M, N] without NaN."""
    order = in_order(logits)
    chains = params.chains
    if chains is None:
        return permitted(order, gaps_and_weights(scaled)[1], Filters.of(params))
    columns = _Columns.of(params, chains)
    gaps, weights = gaps_and_weights(torch.where(columns.last, logits, scaled))
    keep = permitted(order, weights, columns.early)
    units = units_of(weights)
    present = [chain for chain in chains if chain is not None]
    if any(chain.typical_p < 1 for chain in present):
        keep = keep & (_typical_mask(gaps, units * keep, columns.typical_p) | (columns.typical_p >= 1))
    if any(chain.xtc_probability > 0 for chain in present):
        acts = uniform(params.seed, params.step, XTC).unsqueeze(1) < columns.xtc_probability
        tops = _top_mask(order, units * keep, columns.xtc_threshold) & ~_spared(keep, chains)
        keep = keep & ~(tops & acts)
    if any(chain.temperature_last and chain.top_k > 0 for chain in present):
        rank = keep.gather(-1, order).cumsum(-1)
        keep = keep & (torch.zeros_like(keep).scatter(-1, order, rank <= columns.late_k) | (columns.late_k <= 0))
    return keep


def _typical_mask(gaps: torch.Tensor, units: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """:func:`_typical` of each row; ``units`` [M, N] are 0 where an id was removed."""
    distances = torch.where(units > 0, (gaps.double() - mean_gap(gaps, units)).abs(), torch.inf)
    ordered, order = torch.sort(distances, dim=-1, stable=True)
    need = mass * units.sum(-1, keepdim=True)
    reached = (units.gather(-1, order).cumsum(-1) < need).sum(-1, keepdim=True).clamp(max=units.shape[-1] - 1)
    return (distances <= ordered.gather(-1, reached)) & (units > 0)


def _top_mask(order: torch.Tensor, units: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Ids that XTC drops from each row unless they are spared: [M, N]."""
    tall = (units >= threshold * units.sum(-1, keepdim=True)) & (units > 0)
    places = torch.arange(order.shape[-1], device=order.device)
    last = torch.where(tall.gather(-1, order), places, -1).amax(-1, keepdim=True).clamp(min=0)
    return tall.scatter(-1, order.gather(-1, last), False)


def _spared(like: torch.Tensor, chains: tuple[FilterChain | None, ...]) -> torch.Tensor:
    """Ids [M, N] that XTC must leave."""
    spared = torch.zeros_like(like)
    pairs = [(m, i) for m, chain in enumerate(chains) if chain for i in chain.xtc_spared if i < like.shape[-1]]
    if pairs:
        rows, ids = torch.tensor(pairs, device=like.device).unbind(1)
        spared[rows, ids] = True
    return spared


def toned(logits: torch.Tensor, scaled: torch.Tensor, temperature: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """``scaled`` [M, N] with the rows that have a map of their own replaced by it; ``temperature`` [M, 1]."""
    places: dict[Tone, list[int]] = {}
    for m, chain in enumerate(params.chains or ()):
        if chain is not None and chain.tone is not None:
            places.setdefault(chain.tone, []).append(m)
    for tone, rows in places.items():
        index = torch.tensor(rows, device=logits.device)
        scaled = scaled.index_copy(0, index, tone_scores(tone, logits[index], temperature[index]))
    return scaled
