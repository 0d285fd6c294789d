"""Triton's interpreter for tests of kernels: import this before any module that holds kernels.

Triton 3.6 turns scalars into Python integers in a way that NumPy 2.4 refuses; the interpreter gets another way here.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="kernels are written in Triton, which is not installed here")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED:
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_with_integers(tensor: Any, scope: Any) -> None:
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_integers
