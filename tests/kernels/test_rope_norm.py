"""Rotary tables and norms against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.kernels.norm import RMSNorm
from paceline.kernels.rope import RopeConfig, RopeTable, attention_scale, rotate

CPU = torch.device("cpu")


def test_rotation_is_that_of_complex_numbers() -> None:
    config = RopeConfig(dim=8, theta=100.0)
    table = RopeTable(config, 50, torch.float64, CPU)
    positions = torch.tensor([0, 3, 49])
    x = torch.randn(3, 2, 12, dtype=torch.float64)
    got = rotate(x, *table.at(positions))
    pairs = torch.complex(x[..., :4], x[..., 4:8])
    angles = positions.view(3, 1, 1) * 100.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag, x[..., 8:]), -1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_dynamic_positions_do_not_depend_on_the_table() -> None:
    """A position past the trained length has the base of a sequence that ends there, in any table."""
    config = RopeConfig(dim=8, kind="dynamic", factor=2.0, max_len=32)
    short, long = (RopeTable(config, length, torch.float64, CPU).table for length in (48, 128))
    assert torch.equal(short, long[:48])
    plain = RopeTable(RopeConfig(dim=8), 128, torch.float64, CPU).table
    assert torch.equal(long[:32], plain[:32]) and not torch.equal(long[40], plain[40])


def test_longrope_takes_its_long_factors_past_the_trained_length() -> None:
    config = RopeConfig(
        dim=4, kind="longrope", factor=4.0, max_len=64, trained_len=16, short_factor=(1.0, 1.0), long_factor=(2.0, 3.0)
    )
    short, long = (RopeTable(config, length, torch.float64, CPU).table for length in (16, 64))
    assert not torch.equal(short[5], long[5])
    assert attention_scale(config) == pytest.approx((1 + math.log(4) / math.log(16)) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 16).to(dtype)
    for weight in (torch.rand(16) + 0.5, torch.rand(3, 16) + 0.5):
        wide = x.double()
        expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        bound = 1e-2 if dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(RMSNorm(weight, 1e-5, dtype)(x).double(), expected, rtol=bound, atol=bound)
