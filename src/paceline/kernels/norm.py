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
        self.per_head = weight.dim() > 1
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.doubled = not self.per_head and wide == torch.float32
        self.weight = weight.to(wide)
        if self.doubled:
            self.weight = torch.cat((self.weight, self.weight))
        self.nbytes = self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D] in the dtype of x."""
        if self.doubled and x.device.type == "cpu":
            # the mean of (x, -x) is zero and its variance that of RMSNorm, so one fused layer norm does all of it
            out = F.layer_norm(torch.cat((x, -x), -1), (2 * self.width,), self.weight, None, self.eps)
            return out[..., : self.width].contiguous()
        weight = self.weight[: self.width] if self.doubled else self.weight
        normed = F.rms_norm(x.to(weight.dtype), (self.width,), None, self.eps)
        return normed.mul_(weight).to(x.dtype)


@lru_cache(maxsize=64)
def row_invariant(width: int, dtype: torch.dtype, heads: int | None = None) -> bool:
    """Whether a row [width], or [heads, width] with one weight per head, is normed to the same bits however many rows
    share the call, on the CPU at hand."""
    # sums are taken in the wide format, where a difference shows; rounding to a short one would hide most
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (width,) if heads is None else (heads, width)
    x = torch.randn(PROBED_ROWS, *shape, generator=torch.Generator().manual_seed(79), dtype=wide)
    norm = RMSNorm(torch.linspace(0.5, 1.5, width).expand(shape), 1e-6, wide)
    found = row_invariance(lambda rows: norm(x[rows]), width)
    return found.wide and found.min_rows == 1
