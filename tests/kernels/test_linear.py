"""Products: right values in every format, rows that do not depend on their company, bytes as declared."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.kernels import linear
from paceline.kernels.backend import TORCH_DTYPES, product_support, resolve_dtype
from paceline.kernels.linear import Linear, make_linear, quantise_rows

SHAPES = [(96, 64), (576, 1536), (192, 48)]
DTYPES = ["float64", "float32", "bfloat16", "int8"]
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 3e-2, "int8": 6e-2}


def product(
    dtype: str, outputs: int, inputs: int, bias: bool = False
) -> tuple[Linear, torch.Tensor, torch.Tensor | None]:
    torch.manual_seed(outputs + inputs)
    weight = torch.randn(outputs, inputs, dtype=torch.float64) * inputs**-0.5
    shift = torch.randn(outputs, dtype=torch.float64) if bias else None
    return make_linear(weight, shift, dtype=dtype), weight, shift


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_values(dtype: str, bias: bool, rows: int) -> None:
    for outputs, inputs in SHAPES:
        layer, weight, shift = product(dtype, outputs, inputs, bias)
        x = torch.randn(rows, inputs, dtype=torch.float64).to(TORCH_DTYPES[dtype])
        residual = torch.randn(rows, outputs, dtype=torch.float64).to(x.dtype)
        before = residual.clone()
        expected = F.linear(x.double(), weight, shift)
        bound = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        torch.testing.assert_close(layer(x).double(), expected, **bound)
        torch.testing.assert_close(layer(x, residual).double(), expected + before.double(), **bound)
        torch.testing.assert_close(layer(x, residual, wide=True).double(), expected + before.double(), **bound)
        assert torch.equal(residual, before), "the residual must not be written to"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_that_says_so_is_row_invariant(dtype: str) -> None:
    """Row counts here are not those of the probe."""
    for outputs, inputs in SHAPES:
        layer, _, _ = product(dtype, outputs, inputs)
        x = torch.randn(48, inputs).to(TORCH_DTYPES[dtype])
        residual = torch.randn(48, outputs).to(x.dtype)
        whole, added = layer(x), layer(x, residual)
        for start, rows in ((0, 1), (5, 1), (3, 4), (7, 6), (11, 13), (0, 29)):
            part = slice(start, start + rows)
            same = torch.equal(layer(x[part]), whole[part]) and torch.equal(layer(x[part], residual[part]), added[part])
            assert same or not layer.row_invariant


@pytest.mark.skipif("bfloat16" not in product_support().packed, reason="no prepacked bfloat16 products on this CPU")
def test_packed_bfloat16_is_row_invariant_here() -> None:
    for outputs, inputs in SHAPES:
        layer, _, _ = product("bfloat16", outputs, inputs)
        assert layer.row_invariant and layer.wide_invariant


def test_the_probe_notices_rows_that_depend_on_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: a product whose rows change with the call size is not declared invariant, padding or not."""

    def drifting(self: linear.PlainLinear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, self.weight) * (1 + 1e-3 * (x.shape[0] % 5))

    monkeypatch.setattr(linear.PlainLinear, "product", drifting)
    monkeypatch.setattr(linear, "_PROBED", {})
    assert not make_linear(torch.randn(32, 16), None, dtype="float64").row_invariant


def test_single_rows_are_padded_where_that_makes_them_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd_alone(self: linear.PlainLinear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_zeros(x.shape[0], 32).add_(x.sum(1, keepdim=True).round())
        return (out if residual is None else out + residual) + (1 if x.shape[0] == 1 else 0)

    monkeypatch.setattr(linear.PlainLinear, "product", odd_alone)
    monkeypatch.setattr(linear, "_PROBED", {})
    layer = make_linear(torch.randn(32, 16), None, dtype="float64")
    assert layer.row_invariant
    x, residual = torch.ones(3, 16, dtype=torch.float64), torch.ones(3, 32, dtype=torch.float64)
    assert torch.equal(layer(x[:1]), layer(x)[:1])
    assert torch.equal(layer(x[:1], residual[:1]), layer(x, residual)[:1])


def test_bytes() -> None:
    sizes = {dtype: product(dtype, 96, 64, bias=True)[0].nbytes for dtype in DTYPES}
    assert sizes["float64"] == 8 * (96 * 64 + 96)
    assert sizes["float32"] == 4 * (96 * 64 + 96)
    assert sizes["bfloat16"] == 2 * (96 * 64 + 96)
    assert sizes["int8"] in (96 * 64 + 2 * 2 * 96, sizes["bfloat16"])


def test_quantised_rows_stay_within_half_a_step() -> None:
    weight = torch.cat((torch.randn(8, 64), torch.zeros(1, 64)))
    codes, scales = quantise_rows(weight)
    error = (codes * scales.float().unsqueeze(1) - weight).abs()
    # the scale is rounded to bfloat16, so the largest entry may fall up to 127 x 2^-9 steps past the end
    assert (error <= scales.float().unsqueeze(1) * (0.5 + 127 * 2**-8)).all()
    assert torch.isfinite(scales).all() and (codes[8] == 0).all()


def test_a_missing_fast_product_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.kernels import backend

    def absent(*_args: object) -> torch.Tensor:
        raise RuntimeError("not built")

    monkeypatch.setattr(torch, "_weight_int8pack_mm", absent)
    backend.product_support.cache_clear()
    try:
        support = product_support()
        assert not support.int8 and "not built" in support.reasons["int8"]
        layer, weight, _ = product("int8", 96, 64)
        x = torch.randn(4, 64).bfloat16()
        torch.testing.assert_close(layer(x).double(), x.double() @ weight.T, rtol=3e-2, atol=3e-2)
    finally:
        backend.product_support.cache_clear()


def test_auto_dtype_is_never_a_format_that_must_be_asked_for() -> None:
    dtype, reason = resolve_dtype("auto", "auto")
    assert dtype in ("float32", "bfloat16") and reason
    assert resolve_dtype("int8", "cpu") == ("int8", "as asked")
