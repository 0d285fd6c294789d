"""Gated activations of the feed-forward block, applied to a merged gate/up product. Knows no layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def gated(activation: Activation, merged: torch.Tensor) -> torch.Tensor:
    """[N, 2I] (gate, then up) -> [N, I]: ``activation(gate) * up``."""
    gate, up = merged.chunk(2, -1)
    return activation(gate).mul_(up)
