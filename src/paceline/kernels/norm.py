"""Root-mean-square norm over the last axis, as one object per weight. Knows no layer."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from .probe import PROBED_ROWS, row_invariance


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * w`` with w as stored or 1 + stored (Gemma); sums in float32 or wider.

    ``weight`` [..., D] may have leading axes that broadcast against those of x (one weight per head).
    """

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> None:
        self.width = weight.shape[-1]
        self.eps = eps
        self.fused = weight.dim() == 1
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.weight = weight.to(wide)
        self.nbytes = self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D] in the dtype of x."""
        wide = x.to(self.weight.dtype)
        if self.fused:
            return F.rms_norm(wide, (self.width,), self.weight, self.eps).to(x.dtype)
        return F.rms_norm(wide, (self.width,), None, self.eps).mul_(self.weight).to(x.dtype)


@lru_cache(maxsize=64)
def row_invariant(width: int, dtype: torch.dtype) -> bool:
    """Whether a row is normed to the same bits however many rows share the call, on the CPU at hand."""
    # sums are taken in the wide format, where a difference shows; rounding to a short one would hide most
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(PROBED_ROWS, width, generator=torch.Generator().manual_seed(79), dtype=wide)
    norm = RMSNorm(torch.linspace(0.5, 1.5, width), 1e-6, wide)
    found = row_invariance(lambda rows: norm(x[rows]), width)
    return found.wide and found.min_rows == 1
