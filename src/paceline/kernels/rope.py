"""Rotary positions: frequencies of every scaling kind, tables over positions, and the rotation. Knows no layer.

Angles are formed in float32, as the checkpoints' own reference code does, so that equal positions give equal bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RopeConfig:
    """One rotary scheme. ``dim``: rotated leading features of each head. ``kind``: default, linear, dynamic, yarn,
    llama3 or longrope; fields below ``trained_len`` belong to one kind each. ``trained_len``: positions seen in
    training before scaling. ``max_len``: the positions the checkpoint declares.
    """

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    max_len: int = 2048
    trained_len: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


class RopeTable:
    """Cosines and signed sines of positions 0 .. length-1, each [length, dim]; sines carry the rotation's sign."""

    def __init__(self, config: RopeConfig, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dim = config.dim
        angles = _angles(config, length)
        scale = attention_scale(config)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        self.table = table.to(device=device, dtype=dtype)
        self.nbytes = self.table.nbytes

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [N] -> cosines and signed sines, each [N, 1, dim].

        Positions past the table get its last entry: windows may reach beyond a row's end, where nothing is used.
        """
        rows = self.table.index_select(0, positions.clamp_max(self.table.shape[0] - 1))
        return rows[:, 0:1], rows[:, 1:2]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the leading features of every head: x [N, heads, D], cos and signed sin [N, 1, dim], dim <= D."""
    dim = cos.shape[-1]
    if dim == x.shape[-1]:
        return torch.addcmul(x * cos, x.roll(dim // 2, -1), sin)
    return torch.cat((rotate(x[..., :dim], cos, sin), x[..., dim:]), -1)


def attention_scale(config: RopeConfig) -> float:
    """Factor on cosines and sines (YaRN, arXiv 2309.00071 section 3.4; LongRoPE, arXiv 2402.13753)."""
    if config.kind == "yarn":
        if config.attention_factor is not None:
            return config.attention_factor
        if config.mscale and config.mscale_all_dim:
            return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
        return _mscale(config.factor, 1.0)
    if config.kind == "longrope":
        if config.attention_factor is not None:
            return config.attention_factor
        stretch = config.factor
        return 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(config.trained_len))
    return 1.0


def _mscale(stretch: float, weight: float) -> float:
    return 1.0 if stretch <= 1 else 0.1 * weight * math.log(stretch) + 1.0


def _angles(config: RopeConfig, length: int) -> torch.Tensor:
    """[length, dim / 2] float32."""
    positions = torch.arange(length, dtype=torch.float32)
    angles = positions.unsqueeze(1) * _frequencies(config, length)
    if config.kind == "dynamic" and length > config.max_len:
        angles[config.max_len :] = _dynamic_angles(config, positions[config.max_len :])
    return angles


def _frequencies(config: RopeConfig, length: int) -> torch.Tensor:
    """[dim / 2] float32 for schemes whose frequencies do not change along a sequence."""
    plain = 1.0 / _wavelengths(config, config.theta)
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(config, plain)
    if config.kind == "yarn":
        return _yarn(config)
    if config.kind == "longrope":
        factors = config.long_factor if length > config.trained_len else config.short_factor
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _wavelengths(config, config.theta))
    return plain


def _wavelengths(config: RopeConfig, theta: float) -> torch.Tensor:
    """[dim / 2] float32: theta^(2i/dim), wavelengths over 2 pi."""
    exponents: torch.Tensor = torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim
    powers: torch.Tensor = theta**exponents
    return powers


def _dynamic_angles(config: RopeConfig, positions: torch.Tensor) -> torch.Tensor:
    """Dynamic NTK: past the trained length the base grows with the sequence.

    A token at position p uses the base of a sequence of p + 1 tokens, whatever window or chunk brings it, so that its
    key never depends on how it was fed.
    """
    lengths = (positions + 1).clamp_min(config.max_len).double()
    growth = (config.factor * lengths / config.max_len) - (config.factor - 1)
    theta = config.theta * growth ** (config.dim / (config.dim - 2))
    exponents = torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim
    frequencies = (1.0 / theta.unsqueeze(1) ** exponents).float()
    return positions.unsqueeze(1) * frequencies


def _llama3(config: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between interpolated."""
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > config.trained_len / config.low_freq_factor, plain / config.factor, plain)
    smooth = (config.trained_len / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    between = (1 - smooth) * stretched / config.factor + smooth * stretched
    long = wavelength > config.trained_len / config.low_freq_factor
    short = wavelength < config.trained_len / config.high_freq_factor
    return torch.where(~long & ~short, between, stretched)


def _yarn(config: RopeConfig) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): interpolate slow dimensions, keep fast ones, ramp between."""
    powers = _wavelengths(config, config.theta)
    low, high = (_yarn_dimension(config, turns) for turns in (config.beta_fast, config.beta_slow))
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(config.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (config.factor * powers) * (1 - keep) + 1.0 / powers * keep


def _yarn_dimension(config: RopeConfig, turns: float) -> float:
    """Dimension that makes ``turns`` rotations over the trained length."""
    return (config.dim * math.log(config.trained_len / (turns * 2 * math.pi))) / (2 * math.log(config.theta))
