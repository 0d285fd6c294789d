"""Matrix products with constant weights: plain, prepacked (oneDNN), and int8 weight-only. Knows no layer or model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from .backend import TORCH_DTYPES, product_support
from .probe import Invariance, cancelling_rows, row_invariance

_BATCH_HINT = 8
_EDGE = 16
_WIDE_ROWS = (65, 100, 129)
_DEQUANTISED_ELEMENTS = 8 << 20
#: A product that must not run on fewer than two or three rows runs on four, which takes less time than two.
_PADDED_ROWS = 4
#: Up to so many rows a product runs as it is; longer prompt chunks are padded to a multiple of the step.
_FEW_ROWS, _ROW_STEP = 32, 16
_PROBED: dict[tuple[str, int, int, bool, int], Invariance] = {}


class Linear(ABC):
    """``y = x W^T + b``, plus a residual if one is given. ``nbytes`` counts everything held.

    ``row_invariant``: a row's result does not depend on how many rows share the call (48 rows and fewer);
    ``wide_invariant``: nor for any larger number tried. Both are established on the machine at hand.
    """

    out_features: int
    in_features: int
    nbytes: int
    row_invariant: bool = False
    wide_invariant: bool = False

    @abstractmethod
    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None, wide: bool = False) -> torch.Tensor:
        """[N, in] -> [N, out]. ``wide``: the rows belong to long prompt chunks; only weight-only formats care."""


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, dtype: str) -> Linear:
    """Pack ``weight`` [out, in] for products in ``dtype`` (float64, float32, bfloat16 or int8 weight-only).

    Copies what it needs: the caller may drop ``weight`` afterwards.
    """
    target = TORCH_DTYPES[dtype]
    bias = None if bias is None else bias.to(target)
    support = product_support()
    if weight.device.type == "cpu":
        if dtype == "int8" and support.int8:
            return _probed(Int8Linear(weight, bias), dtype)
        if dtype in support.packed:
            return _probed(PackedLinear(weight.to(target), bias), dtype)
        if dtype == "int8" and "bfloat16" in support.packed:
            return _probed(PackedLinear(weight.to(target), bias), "bfloat16")
    return _probed(PlainLinear(weight.to(target), bias), dtype)


def _probed(linear: _Padded, dtype: str) -> Linear:
    """Set what is known about row invariance, probing each shape once per process."""
    if linear.device.type != "cpu":
        del linear.edges
        return linear
    key = (dtype, linear.out_features, linear.in_features, linear.bias is not None, torch.get_num_threads())
    if key not in _PROBED:
        _PROBED[key] = _probe(linear)
    found = _PROBED[key]
    del linear.edges
    linear.row_invariant, linear.wide_invariant = found.narrow, found.wide
    linear.min_rows = 1 if found.min_rows == 1 else _PADDED_ROWS
    return linear


def _probe(linear: _Padded) -> Invariance:
    """The product alone and with a residual must both be invariant, with the same padding.

    The residual is the rounded product taken away, so that what rounding hid is all that is left.
    """
    work = linear.in_features * linear.out_features
    x = cancelling_rows(linear.edges, linear.product_dtype)
    away = linear.product(x[:1]).neg_()

    def alone(rows: slice) -> torch.Tensor:
        return linear.product(x[rows])

    def added(rows: slice) -> torch.Tensor:
        count = x[rows].shape[0]
        return linear.product(x[:1].repeat(count, 1), away.repeat(count, 1))

    found = [row_invariance(call, work) for call in (alone, added)]
    wide = all(one.wide for one in found) and (not isinstance(linear, Int8Linear) or _wide_calls_agree(linear, x))
    return Invariance(max(one.min_rows for one in found), all(one.narrow for one in found), wide)


def _wide_calls_agree(linear: Int8Linear, x: torch.Tensor) -> bool:
    reference = linear(x, wide=True)
    return all(torch.equal(linear(x[:rows], wide=True), reference[:rows]) for rows in _WIDE_ROWS)


def _edge_rows(weight: torch.Tensor) -> torch.Tensor:
    """The first and last few outputs' weights, where a kernel's tiles begin and end."""
    return torch.cat((weight[:_EDGE], weight[-_EDGE:])).double()


class _Padded(Linear):
    """Calls :meth:`product` with at least ``min_rows`` rows, and with few different numbers of them: the library keeps
    generated code for every shape it has seen. ``edges``: some weights, kept for the probe only."""

    min_rows = 1
    edges: torch.Tensor
    bias: torch.Tensor | None
    device: torch.device
    product_dtype: torch.dtype

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None, wide: bool = False) -> torch.Tensor:
        rows = x.shape[0]
        padded = max(rows, self.min_rows) if rows <= _FEW_ROWS else -(-rows // _ROW_STEP) * _ROW_STEP
        if rows == padded:
            return self.product(x, residual)
        x = x.expand(padded, -1) if rows == 1 else F.pad(x, (0, 0, 0, padded - rows))
        if residual is not None:
            residual = F.pad(residual, (0, 0, 0, padded - rows))
        return self.product(x.contiguous(), residual)[:rows]

    @abstractmethod
    def product(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...


class PlainLinear(_Padded):
    """``F.linear`` on the weight as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight.contiguous()
        self.bias = bias
        self.edges = _edge_rows(weight)
        self.device = weight.device
        self.product_dtype = weight.dtype
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def product(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = F.linear(x, self.weight, self.bias)
        return out if residual is None else out.add_(residual)


class PackedLinear(_Padded):
    """oneDNN product on a weight reordered once for this machine; the residual is added inside the product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH_HINT)
        self.bias = bias
        self.edges = _edge_rows(weight)
        self.device = weight.device
        self.product_dtype = weight.dtype
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def product(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor
        if residual is None:
            out = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        else:
            out = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return out


class Int8Linear(_Padded):
    """int8 weights with one bfloat16 scale per output, bfloat16 activations.

    The int8 kernel reads half the bytes but computes slowly, so it serves few rows. ``wide`` calls expand the weight
    to bfloat16 in slices: another order of sums, hence chosen by the caller from the row's own chunk length alone.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.scales = quantise_rows(weight)
        self.edges = _edge_rows(self.weight) * _edge_rows(self.scales.unsqueeze(1))
        self.bias = bias
        self.device = weight.device
        self.product_dtype = torch.bfloat16
        self.nbytes = self.weight.nbytes + self.scales.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None, wide: bool = False) -> torch.Tensor:
        return self._expanded(x, residual) if wide else super().__call__(x, residual)

    def product(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = torch._weight_int8pack_mm(x, self.weight, self.scales)
        if self.bias is not None:
            out.add_(self.bias)
        return out if residual is None else out.add_(residual)

    def _expanded(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        step = max(1, _DEQUANTISED_ELEMENTS // self.in_features)
        parts = []
        for start in range(0, self.out_features, step):
            part = slice(start, start + step)
            weight = self.weight[part].to(torch.bfloat16).mul_(self.scales[part].unsqueeze(1))
            parts.append(F.linear(x, weight))
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if self.bias is not None:
            out.add_(self.bias)
        return out if residual is None else out.add_(residual)


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] -> int8 [out, in] and bfloat16 scales [out]: symmetric, the scale already rounded when dividing."""
    full = weight.float()
    scales = (full.abs().amax(1) / 127).to(torch.bfloat16)
    divisor = scales.float().masked_fill_(scales == 0, 1.0).unsqueeze(1)
    return (full / divisor).round_().clamp_(-127, 127).to(torch.int8), scales
