"""Root-mean-square norm over the last axis, as one object per weight. Knows no layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
