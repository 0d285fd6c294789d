"""What a draw depends on besides its logits, one column per parameter. Knows no request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from ..core.request import GREEDY_TEMPERATURE, SamplingParams


@dataclass(frozen=True)
class DrawParams:
    """Parameters of M draws. Columns are tensors [M] on the device of the logits.

    - ``temperature`` float32: at most 1e-5 is greedy. ``top_p``, ``min_p`` float32, ``top_k`` int64: a filter is off at
      ``top_p`` <= 0 or >= 1, ``min_p`` <= 0, ``top_k`` <= 0 or >= the number of ids.
    - ``seed`` int64 (the 64 bits in two's complement), ``step`` int64: the key of the noise.
    - ``all_greedy``, ``any_filter``: what the host knows of all rows; they spare a device from computing what no row
      needs. ``all_greedy`` must be false if any row samples, ``any_filter`` true if any row filters.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    step: torch.Tensor
    all_greedy: bool = False
    any_filter: bool = True

    @classmethod
    def of(
        cls,
        options: Sequence[SamplingParams],
        seeds: Sequence[int],
        steps: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> DrawParams:
        """Columns for M rows on the host: their options, seeds (0 .. 2**64 - 1) and steps."""

        def column(values: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return cls(
            temperature=column((0.0 if o.greedy else o.temperature for o in options), torch.float32),
            top_k=column((o.top_k for o in options), torch.int64),
            top_p=column((o.top_p for o in options), torch.float32),
            min_p=column((o.min_p for o in options), torch.float32),
            seed=column(map(signed_seed, seeds), torch.int64),
            step=column(steps, torch.int64),
            all_greedy=all(o.greedy for o in options),
            any_filter=any(filters(o) for o in options),
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
        return replace(self, step=(self.step.unsqueeze(1) + offsets).flatten(), **columns)


def signed_seed(seed: int) -> int:
    """The 64 bits of ``seed`` (0 .. 2**64 - 1) as a signed integer, as the tables hold them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def filters(options: SamplingParams) -> bool:
    """Whether any filter of ``options`` can remove an id."""
    return not options.greedy and (options.top_k > 0 or 0 < options.top_p < 1 or options.min_p > 0)
