"""What a decode step must read, and how fast the device reads: the floor that every figure is compared with.

A step streams every matrix once, whatever its number of rows, and the keys and values of every row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...draft.kinds._eagle_layer import Eagle3Shape
from ...models.config import DecoderConfig
from .timing import median_ms, on_cuda

READ_BYTES = 5 << 30
"""Bytes of one pass of the stream kernel: far more than any cache holds."""
_TRIALS = ((4096, 8, 8), (8192, 8, 4), (8192, 8, 8), (16384, 16, 2), (16384, 16, 4))
"""Block, warps and programs per multiprocessor that are tried; the fastest is the ceiling."""


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second that the device reads at best, and by which launch; ``copies``: a plain copy, bytes read and
    written."""

    reads: float
    copies: float
    launch: str

    def document(self) -> dict[str, Any]:
        return asdict(self)


def measure_bandwidth(device: str, nbytes: int = READ_BYTES) -> Bandwidth:
    """Read ``nbytes`` with a kernel that does nothing else; on a CPU by adding them up."""
    block = max(trial[0] for trial in _TRIALS)
    count = max(1, nbytes // 4 // block) * block
    source = torch.randint(0, 1 << 20, (count,), dtype=torch.int32, device=device)
    half = count // 2
    copy = median_ms(lambda: source[:half].copy_(source[half : 2 * half]), device, repeats=10)
    copies = 2 * half * 4 / copy * 1e3
    if not on_cuda(device):
        return Bandwidth(source.nbytes / median_ms(source.sum, device, repeats=5) * 1e3, copies, "sum")
    reads, launch = max(_trial(source, trial) for trial in _TRIALS)
    return Bandwidth(reads, copies, launch)


def _trial(source: torch.Tensor, trial: tuple[int, int, int]) -> tuple[float, str]:
    from .stream_kernel import stream_sum

    block, warps, per_processor = trial
    processors = torch.cuda.get_device_properties(source.device).multi_processor_count
    sums = torch.empty(processors * per_processor, dtype=torch.int32, device=source.device)
    read = 4 * stream_sum(source, sums, block, warps)
    taken = median_ms(lambda: stream_sum(source, sums, block, warps), source.device, repeats=15)
    return read / taken * 1e3, f"block {block}, {warps} warps, {per_processor} programs per processor"


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one step reads. ``weights``: all matrices, the head included, the lookup table not; ``kv_token``:
    keys and values of one position in all layers."""

    weights: int
    kv_token: int

    def floor_ms(self, bandwidth: Bandwidth, rows: int = 1, context: int = 0) -> float:
        """Milliseconds that reading takes at least, for ``rows`` rows behind ``context`` positions each."""
        return (self.weights + rows * context * self.kv_token) / bandwidth.reads * 1e3


def step_bytes(config: DecoderConfig, weight_size: int = 2, kv_size: int = 2) -> StepBytes:
    """Of one forward of a dense model. ``weight_size``, ``kv_size``: bytes per element."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * inner
    matrices = config.num_layers * layer + config.vocab_size * hidden
    return StepBytes(matrices * weight_size, 2 * config.num_layers * keys * kv_size)


def chain_step_bytes(shape: Eagle3Shape, weight_size: int = 2) -> int:
    """Of one drafted token of a one-layer chain drafter: its layer, which reads the token's embedding beside the
    feature (twice the hidden size), and its head."""
    queries, keys, hidden = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden
    layer = 2 * hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * shape.intermediate
    return (layer + shape.listed * hidden) * weight_size
