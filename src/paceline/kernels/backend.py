"""What this machine offers for matrix products, and which number format is fastest on it. Knows no model."""

from __future__ import annotations

import contextlib
import ctypes
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.bfloat16,
}


@dataclass(frozen=True)
class ProductSupport:
    """Which fast products can be used; ``reasons`` says for each that cannot why (name -> text)."""

    packed: frozenset[str]
    int8: bool
    reasons: dict[str, str]


@lru_cache(maxsize=1)
def product_support() -> ProductSupport:
    """Try every fast CPU product once on a small matrix and compare it with the plain one."""
    packed: set[str] = set()
    reasons: dict[str, str] = {}
    for name in ("float32", "bfloat16"):
        fault = _packed_fault(TORCH_DTYPES[name])
        if fault is None:
            packed.add(name)
        else:
            reasons[f"packed {name}"] = fault
    int8_fault = _int8_fault()
    if int8_fault is not None:
        reasons["int8"] = int8_fault
    return ProductSupport(frozenset(packed), int8_fault is None, reasons)


def _packed_fault(dtype: torch.dtype) -> str | None:
    """Why prepacked products of ``dtype`` cannot be used here, or ``None``."""
    try:
        weight = torch.eye(32, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        x = torch.arange(64, dtype=dtype).view(2, 32)
        plain = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        added = torch.ops.mkldnn._linear_pointwise.binary(x, x, packed, None, "add")
    except (RuntimeError, AttributeError, TypeError) as error:
        return f"oneDNN linear products are not in this torch build: {error}"
    if not (torch.equal(plain, x) and torch.equal(added, x + x)):
        return "oneDNN linear products give wrong results on this machine"
    return None


def _int8_fault() -> str | None:
    """Why the int8 weight-only product cannot be used here, or ``None``."""
    try:
        weight = torch.eye(32).to(torch.int8)
        x = torch.arange(64, dtype=torch.bfloat16).view(2, 32)
        out = torch._weight_int8pack_mm(x, weight, torch.ones(32, dtype=torch.bfloat16))
    except (RuntimeError, AttributeError, TypeError) as error:
        return f"the int8 weight-only product is not in this torch build: {error}"
    return None if torch.equal(out, x) else "the int8 weight-only product gives wrong results on this machine"


def release_freed_memory() -> None:
    """Hand memory that was freed, but kept by the allocator for reuse, back to the system (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resolve_device(device: str) -> str:
    """``"auto"`` is the CPU: it is the device on which every operation has its fast form."""
    return "cpu" if device == "auto" else device


def resolve_dtype(dtype: str, device: str) -> tuple[str, str]:
    """Number format to use and why. ``"auto"`` picks the fastest that keeps quality; others are taken as asked."""
    if dtype != "auto":
        return dtype, "as asked"
    if resolve_device(device) != "cpu":
        return "bfloat16", f"the usual format on {device}"
    return _fastest_cpu_dtype()


@lru_cache(maxsize=1)
def _fastest_cpu_dtype() -> tuple[str, str]:
    support = product_support()
    if "bfloat16" not in support.packed:
        return "float32", support.reasons["packed bfloat16"]
    if torch.cpu._is_amx_tile_supported():
        return "bfloat16", "this CPU multiplies bfloat16 tiles (AMX)"
    if torch.cpu._is_avx512_bf16_supported():
        return "bfloat16", "this CPU multiplies bfloat16 directly (AVX-512 BF16)"
    half, full = _product_seconds(torch.bfloat16), _product_seconds(torch.float32)
    measured = f"bfloat16 products took {half * 1e3:.2f} ms where float32 took {full * 1e3:.2f} ms"
    return ("bfloat16" if half < full else "float32"), measured


def _product_seconds(dtype: torch.dtype) -> float:
    """Best of five runs of a product of one and of eight rows with an 8 MiB (float32) matrix."""
    weight = torch.randn(1024, 2048).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8) if _packed_fault(dtype) is None else None
    inputs = [torch.randn(rows, 2048).to(dtype) for rows in (1, 8)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for x in inputs:
            if packed is None:
                F.linear(x, weight)
            else:
                torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        times.append(time.perf_counter() - start)
    return min(times)
