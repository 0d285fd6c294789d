"""Where products run in a model, which tiles are worth trying there, and how launches are timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..kernels.triton.launch import DeviceWeight, Fused, product, sums_of
from ..kernels.triton.stream import read_all
from ..kernels.triton.tiles import Tile, segments
from ..models.config import DecoderConfig

SITES = ("qkv", "out", "gate_up", "down", "head")
_SHARED_BYTES = 226 << 10


@dataclass(frozen=True)
class Site:
    """A place in the model where a product runs, with what is fused into it."""

    name: str
    outputs: int
    inputs: int

    @classmethod
    def of(cls, config: DecoderConfig, name: str) -> Site:
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        sizes = {
            "qkv": (width, config.hidden_size),
            "out": (config.hidden_size, config.num_heads * config.head_dim),
            "gate_up": (2 * config.intermediate_size, config.hidden_size),
            "down": (config.hidden_size, config.intermediate_size),
            "head": (config.vocab_size, config.hidden_size),
        }
        return cls(name, *sizes[name])

    def call(
        self, weights: Sequence[DeviceWeight], rows: int, tile: Tile | None
    ) -> tuple[Callable[[], None], torch.Tensor]:
        """A call that runs every weight once on ``rows`` rows, and the tensor it writes."""
        device = weights[0].matrix.device
        generator = torch.Generator(device).manual_seed(7)
        x = torch.randn((256, self.inputs), generator=generator, device=device, dtype=torch.bfloat16)
        x = x.repeat(-(-rows // 256), 1)[:rows]
        gated = self.name == "gate_up"
        dtype = torch.float32 if self.name == "head" else torch.bfloat16
        out = torch.empty((rows, self.outputs // 2 if gated else self.outputs), device=device, dtype=dtype)
        fused = self._fused(x, out)

        def run() -> None:
            for weight in weights:
                if tile is not None:
                    weight.tiles[rows] = tile
                product(x, weight, out, fused)

        return run, out

    def _fused(self, x: torch.Tensor, out: torch.Tensor) -> Fused:
        rows = x.shape[0]
        sums = x.float().square().view(rows, -1, 64).sum(-1) if self.name in ("qkv", "gate_up") else None
        written = None
        if self.name in ("qkv", "out", "down"):
            written = torch.empty((rows, sums_of(self.outputs)), device=x.device, dtype=torch.float32)
        residual = torch.zeros_like(out) if self.name in ("out", "down") else None
        return Fused(sums, written, residual, 1e-6)


def candidates(site: Site, rows: int) -> list[Tile]:
    """Tiles worth trying for so many rows of a product."""
    if rows <= 64:
        held = [16 if rows <= 16 else 32 if rows <= 32 else 64]
        shapes = [(64, 128, 4, (3, 4, 6, 8, 10)), (64, 64, 4, (6, 10)), (64, 256, 4, (3, 4, 5))]
        shapes += [(128, 64, 4, (4, 8)), (128, 128, 4, (3, 5)), (128, 128, 8, (3, 5))]
    else:
        held = [64, 128] if rows <= 128 else [128, 256]
        shapes = [(128, 64, 8, (3, 4, 5, 6)), (128, 64, 4, (3, 5)), (64, 64, 4, (4, 6)), (64, 64, 8, (4, 5))]
        shapes += [(64, 128, 4, (3, 4)), (128, 128, 8, (2, 3)), (256, 64, 8, (3, 4))]
    whole = segments(site.outputs, site.inputs) == 1
    parts = (1, 3) if whole and site.outputs % 192 == 0 else (1,)
    found = [Tile(n, k, m, w, s, p) for m in held for n, k, w, stages in shapes for s in stages for p in parts]
    return [tile for tile in found if _fits(tile)]


def _fits(tile: Tile) -> bool:
    """Whether a tile's buffers and sums fit a Hopper multiprocessor."""
    shared = 2 * tile.depth * (tile.outputs * tile.parts + tile.rows) * tile.stages
    sums = tile.outputs * tile.parts * tile.rows / (32 * tile.warps)
    return shared <= _SHARED_BYTES and sums <= 192 and (tile.parts == 1 or tile.outputs == 64)


def timed(call: Callable[[], Any], repeats: int = 15) -> float:
    """Milliseconds of one replay of ``call`` as a CUDA graph (median)."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times: list[float] = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def read_ceiling(gib: int = 8) -> float:
    """Bytes per second of a kernel that only reads."""
    source = torch.zeros(gib << 28, dtype=torch.int32, device="cuda")
    out = torch.empty(source.numel() // 32768, dtype=torch.int32, device="cuda")
    return source.nbytes / (timed(lambda: read_all(source, out)) * 1e-3)
