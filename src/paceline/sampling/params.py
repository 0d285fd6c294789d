"""What a draw depends on besides its logits, one column per parameter. Knows no request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from ..core.params import HlgSettings
from ..core.request import GREEDY_TEMPERATURE, SamplingParams
from .tone import Tone, bend_of, curve_of

_MOST_TOP_K = 2**31 - 1


@dataclass(frozen=True)
class FilterChain:
    """All filters of a row that asks for one of the rarer ones; it is used in place of the row's columns.

    ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, ``typical_p`` 1, ``xtc_probability`` 0 = off. Numbers are those a float32
    column would hold. ``xtc_spared``: ids that XTC never drops. ``tone``: the map used in place of the temperature.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_spared: tuple[int, ...] = ()
    temperature_last: bool = False
    tone: Tone | None = None

    def acts(self, crossed: bool) -> bool:
        """Whether any filter can remove an id. ``crossed``: XTC acts at this step."""
        return crossed or self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    @property
    def fits_subset(self) -> bool:
        """Whether a draw among listed ids is the full draw with all others banned (spec 13.10)."""
        return self.tone is None and self.xtc_probability == 0


#: Of a row that draws with its temperature and nothing else.
PLAIN = FilterChain()


@dataclass(frozen=True)
class DrawParams:
    """Parameters of M draws. Columns are tensors [M] on the device of the logits.

    - ``temperature`` float32: at most 1e-5 is greedy. ``top_p``, ``min_p`` float32, ``top_k`` int64: a filter is off at
      ``top_p`` <= 0 or >= 1, ``min_p`` <= 0, ``top_k`` <= 0 or >= the number of ids.
    - ``seed`` int64 (the 64 bits in two's complement), ``step`` int64: the key of the noise.
    - ``all_greedy``, ``any_filter``: what the host knows of all rows; they spare a device from computing what no row
      needs. ``all_greedy`` must be false if any row samples, ``any_filter`` true if any row filters.
    - ``chains``: per row, on the host, the filters of those that have rarer ones; ``None`` if no row has.
    - ``coupling``: ``"gumbel"`` or ``"inverse_cdf"``, the same for all draws of an engine (spec 13.5, 13.6).
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    step: torch.Tensor
    all_greedy: bool = False
    any_filter: bool = True
    chains: tuple[FilterChain | None, ...] | None = None
    coupling: str = "gumbel"

    @classmethod
    def of(
        cls,
        options: Sequence[SamplingParams],
        seeds: Sequence[int],
        steps: Sequence[int],
        device: torch.device | str = "cpu",
        spared: Sequence[int] = (),
        coupling: str = "gumbel",
    ) -> DrawParams:
        """Columns for M rows on the host: their options, seeds (0 .. 2**64 - 1) and steps; ``spared``: of XTC."""

        def column(values: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return cls(
            temperature=column((0.0 if o.greedy else o.temperature for o in options), torch.float32),
            top_k=column((min(max(o.top_k, 0), _MOST_TOP_K) for o in options), torch.int64),
            top_p=column((o.top_p for o in options), torch.float32),
            min_p=column((o.min_p for o in options), torch.float32),
            seed=column(map(signed_seed, seeds), torch.int64),
            step=column(steps, torch.int64),
            all_greedy=all(o.greedy for o in options),
            any_filter=any(filters(o) for o in options),
            chains=chains_of([filter_chain(o, tuple(spared)) for o in options]),
            coupling=coupling,
        )

    @property
    def greedy(self) -> torch.Tensor:
        """Which rows take the argmax: bool [M]."""
        return self.temperature <= GREEDY_TEMPERATURE

    def window(self, width: int) -> DrawParams:
        """Parameters [M * width] of windows laid flat: each row ``width`` times, at steps ``step + 0 .. width - 1``."""
        names = ("temperature", "top_k", "top_p", "min_p", "seed")
        columns = {name: getattr(self, name).repeat_interleave(width) for name in names}
        offsets = torch.arange(width, device=self.step.device)
        chains = self.chains and tuple(chain for chain in self.chains for _ in range(width))
        return replace(self, step=(self.step.unsqueeze(1) + offsets).flatten(), chains=chains, **columns)

    def on_subset(self) -> DrawParams:
        """Parameters of draws among listed ids: rows with a map or XTC have their temperature only (spec 13.10)."""
        if self.chains is None or all(chain is None or chain.fits_subset for chain in self.chains):
            return self
        return replace(self, chains=tuple(c if c is None or c.fits_subset else PLAIN for c in self.chains))


def chains_of(chains: Sequence[FilterChain | None]) -> tuple[FilterChain | None, ...] | None:
    """``DrawParams.chains`` of rows with these."""
    return tuple(chains) if any(chain is not None for chain in chains) else None


@lru_cache(maxsize=1024)
def filter_chain(options: SamplingParams, spared: tuple[int, ...] = ()) -> FilterChain | None:
    """The chain of a row with ``options``, ``None`` if the columns of :class:`DrawParams` say it all.

    ``spared``: special ids that XTC never drops. A curve replaces temperature and filters, HLG top-p and top-k.
    """
    if options.greedy or not has_rare_filters(options):
        return None
    if options.curve is not None:
        return FilterChain(tone=curve_of(tuple((x, y) for x, y in options.curve)))
    hlg = options.hlg if isinstance(options.hlg, HlgSettings) else None  # what validation left
    return FilterChain(
        top_k=0 if hlg is not None else min(max(options.top_k, 0), _MOST_TOP_K),
        top_p=1.0 if hlg is not None else _single(options.top_p),
        min_p=_single(options.min_p),
        typical_p=_single(options.typical_p),
        xtc_probability=_single(options.xtc_probability),
        xtc_threshold=_single(options.xtc_threshold),
        xtc_spared=tuple(sorted(set(spared))) if options.xtc_probability > 0 else (),
        temperature_last=options.filter_order == "temperature_last",
        tone=None if hlg is None else bend_of(hlg),
    )


def has_rare_filters(options: SamplingParams) -> bool:
    """Whether ``options`` ask for more than temperature, top-k, top-p and min-p in their usual order."""
    maps = options.curve is not None or options.hlg is not None
    reordered = options.filter_order == "temperature_last" and (options.top_p < 1 or options.min_p > 0)
    return maps or reordered or options.typical_p < 1 or options.xtc_probability > 0


def _single(value: float) -> float:
    return float(np.float32(value))


def signed_seed(seed: int) -> int:
    """The 64 bits of ``seed`` (0 .. 2**64 - 1) as a signed integer, as the tables hold them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def filters(options: SamplingParams) -> bool:
    """Whether the columns of :class:`DrawParams` for ``options`` can remove an id."""
    return not options.greedy and (options.top_k > 0 or 0 < options.top_p < 1 or options.min_p > 0)
