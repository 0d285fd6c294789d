"""Launches of the row and product kernels on tensors. Imports triton on first use; knows no layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from .product import ADD, GATE, PLAIN, product_kernel
from .rows import embed_kernel, norm_kernel
from .tiles import Tile, product_tile, segments

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""No multiply-add is contracted behind the kernels' back: the same expression must give the same bits everywhere."""

_SEGMENT = 64
_OVERLAP = True


@dataclass(eq=False)
class DeviceWeight:
    """A matrix [outputs, inputs] as the product kernel reads it; ``gated``: gates and ups in turns of 8 rows."""

    matrix: torch.Tensor
    bias: torch.Tensor | None = None
    gated: bool = False
    tiles: dict[int, Tile] = field(default_factory=dict)
    boxes: dict[tuple[int, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.segments = segments(self.outputs, self.inputs)
        if self.segments > 1:
            arrival_counters(self.matrix.device)

    @property
    def outputs(self) -> int:
        return self.matrix.shape[0]

    @property
    def inputs(self) -> int:
        return self.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def tile(self, rows: int) -> Tile:
        """The tile for so many rows, looked up once."""
        found = self.tiles.get(rows)
        if found is None:
            found = product_tile(device_name(self.matrix.device), self.outputs, self.inputs, rows)
            self.tiles[rows] = found
        return found


@dataclass(frozen=True)
class Fused:
    """What a product does beside multiplying. ``sums_in``: sums of squares per 64 inputs of each row, whose root mean
    square the row is divided by. ``sums_out``: gets those of the outputs. ``residual`` + ``factor`` * product."""

    sums_in: torch.Tensor | None = None
    sums_out: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    eps: float = 0.0
    factor: float = 1.0


def sums_of(width: int) -> int:
    """Sums of squares that are kept per row of ``width`` features."""
    return -(-width // _SEGMENT)


def levels(count: int) -> int:
    """Height of a binary tree over ``count`` leaves."""
    return (count - 1).bit_length()


def device_name(device: torch.device) -> str:
    """Name of the GPU, or the device type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@lru_cache(maxsize=16)
def chained(device: torch.device) -> bool:
    """Whether launches on ``device`` overlap: each starts before the one before it has ended, and waits inside."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        from . import hopper  # noqa: F401
    except ImportError:
        return False
    return True


@lru_cache(maxsize=16)
def unusable_reason(device: torch.device) -> str | None:
    """Why the kernels cannot serve a model on ``device``, or ``None``: tries a small product on it."""
    if not chained(device):
        return "the fused kernels are for GPUs of compute capability 9.0 with Triton 3.6 or newer"
    x = torch.randn((3, 512), device=device).bfloat16()
    weight = DeviceWeight(torch.randn((128, 512), device=device).bfloat16())
    out = torch.empty((3, 128), dtype=torch.float32, device=device)
    try:
        product(x, weight, out)
    except Exception as error:
        return f"the fused kernels do not compile with this version of Triton: {error}"
    expected = x.float() @ weight.matrix.float().t()
    return None if torch.allclose(out, expected, atol=1e-2) else "the fused kernels give wrong results on this device"


@lru_cache(maxsize=16)
def arrival_counters(device: torch.device) -> torch.Tensor:
    """Counters for programs that share a tile; zero between launches. Make them before a graph is captured."""
    return torch.zeros(1 << 16, dtype=torch.int32, device=device)


def chain(device: torch.device) -> dict[str, Any]:
    """Launch options of a kernel that waits inside for the launch before it."""
    return {"CHAIN": True, "launch_pdl": _OVERLAP} if chained(device) else {"CHAIN": False}


def product(x: torch.Tensor, weight: DeviceWeight, out: torch.Tensor, fused: Fused = Fused()) -> None:
    """out [M, N] = x [M, K] times the weight, with what ``fused`` adds. ``x``, ``out``, residual: any row stride."""
    tile = weight.tile(x.shape[0])
    common = {
        "K": weight.inputs,
        "NORM": 0 if fused.sums_in is None else fused.sums_in.shape[1],
        "EPILOGUE": GATE if weight.gated else PLAIN if fused.residual is None else ADD,
        "BIAS": weight.bias is not None,
        "SUMS": 0 if fused.sums_out is None else fused.sums_out.shape[1],
        "BN": tile.outputs,
        "BK": tile.depth,
        "BM": tile.rows,
        "num_warps": tile.warps,
    }
    programs = -(-weight.outputs // (tile.outputs * tile.parts)) * -(-x.shape[0] // tile.rows)
    if x.dtype == torch.bfloat16 and chained(x.device):
        _hopper(x, weight, out, fused, (programs, tile), common)
        return
    product_kernel[(programs,)](
        x,
        weight.matrix,
        out,
        weight.bias,
        fused.residual,
        fused.sums_in,
        fused.sums_out,
        x.shape[0],
        weight.outputs,
        x.stride(0),
        out.stride(0),
        0 if fused.residual is None else fused.residual.stride(0),
        fused.eps,
        fused.factor,
        LEVELS=levels(max(common["NORM"], 1)),
        EVEN=weight.outputs % tile.outputs == 0 and weight.inputs % tile.depth == 0,
        num_stages=tile.stages,
        **common,
        **OPTIONS,
    )


def _hopper(
    x: torch.Tensor,
    weight: DeviceWeight,
    out: torch.Tensor,
    fused: Fused,
    launch: tuple[int, Tile],
    common: dict[str, Any],
) -> None:
    from .boxes import box
    from .hopper import hopper_kernel

    programs, tile = launch
    shape = (tile.outputs, tile.depth)
    if shape not in weight.boxes:
        weight.boxes[shape] = box(weight.matrix, shape)
    partial = arrivals = None
    if weight.segments > 1:
        size = programs * weight.segments * tile.outputs * tile.rows
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
        arrivals = arrival_counters(x.device)
    hopper_kernel[(programs * weight.segments,)](
        weight.boxes[shape],
        box(x, (tile.rows, tile.depth)),
        out,
        weight.bias,
        fused.residual,
        fused.sums_in,
        fused.sums_out,
        partial,
        arrivals,
        x.shape[0],
        weight.outputs,
        out.stride(0),
        0 if fused.residual is None else fused.residual.stride(0),
        fused.eps,
        fused.factor,
        PADDED=1 << levels(max(common["NORM"], 1)),
        PARTS=tile.parts,
        SEGMENTS=weight.segments,
        STAGES=min(tile.stages, -(-weight.inputs // (weight.segments * tile.depth))),
        EARLY=tile.early,
        launch_pdl=_OVERLAP,
        **common,
        **OPTIONS,
    )


def embed(tokens: torch.Tensor, table: torch.Tensor, factor: float, out: torch.Tensor, sums: torch.Tensor) -> None:
    """out [N, H] = factor * table[tokens]; ``sums`` [N, sums_of(H)] gets the sums of squares."""
    rows, width = tokens.shape[0], table.shape[1]
    parts = sums.shape[1]
    embed_kernel[(rows, -(-parts // 8))](
        tokens,
        table,
        out,
        sums,
        out.stride(0),
        factor,
        WIDTH=width,
        TILES=parts,
        CHAIN=chained(table.device),
        num_warps=4,
        **OPTIONS,
    )


def normed(x: torch.Tensor, sums: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [N, H] / rms * weight [H] (float32), from the sums of squares of x."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    parts = sums.shape[1]
    norm_kernel[(rows, -(-width // 1024))](
        x,
        sums,
        weight,
        out,
        x.stride(0),
        eps,
        WIDTH=width,
        TILES=parts,
        LEVELS=levels(parts),
        B=1024,
        num_warps=4,
        **chain(x.device),
        **OPTIONS,
    )
    return out
