"""Tensor descriptors: which box of a matrix the tensor copy engine moves at a time. Imports Triton's Hopper parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@lru_cache(maxsize=64)
def _layout(shape: tuple[int, int]) -> Any:
    return gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16)


def box(matrix: torch.Tensor, shape: tuple[int, int]) -> Any:
    """Descriptor of boxes ``shape`` of a bfloat16 matrix; what lies outside it reads as zero."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(shape), _layout(shape))
