"""Decides whether a model runs as the fused device graph, builds it, and asks the device what it promises.

Imports the device graph, and with it triton, only when a GPU is used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ..core.batch import ForwardBatch
from .config import DecoderConfig
from .graph import DecoderGraph

if TYPE_CHECKING:
    from .device_graph import DeviceGraph

    Graph = DecoderGraph | DeviceGraph
else:
    Graph = DecoderGraph

_BLOCK = 16
_PROMPT = 300
_CHUNKINGS: tuple[tuple[int, ...], ...] = ((300,), (128, 172), (64, 33, 203), (240, 17, 16, 2, 8, 1, 1, 15))
_WINDOWS: tuple[tuple[int, int], ...] = ((1, 1), (1, 5), (3, 1), (2, 8), (4, 16), (2, 33), (20, 8))
"""(rows, width) of windows whose results are compared with those of the prompt: every row tile is among them."""


@dataclass(frozen=True)
class Fused:
    """A fused graph. ``invariant``: whether rows depend on nothing that shares their forward, and nothing on how a
    prompt was cut."""

    graph: DeviceGraph
    invariant: tuple[bool, bool]


def unfused_reason(config: DecoderConfig) -> str | None:
    """Why a model of this kind cannot run as a fused graph, or ``None`` if it can."""
    dim, shared = config.head_dim, config.num_heads // config.num_kv_heads
    faults = {
        f"the activation {config.activation}": config.activation not in ("silu", "swish"),
        "norms behind its blocks": config.post_norm or not config.pre_norm,
        "q/k norms over all heads together": config.qk_norm == "projection",
        "soft caps": config.attention_softcap is not None or config.final_softcap is not None,
        "partly rotated heads": any(layer.rope is not None and layer.rope.dim != dim for layer in config.layers),
        f"heads of {dim} features": dim not in (64, 128, 256) and (dim not in (16, 32) or config.qk_norm != "none"),
        "sizes that are no multiple of 16": config.hidden_size % 16 > 0 or config.intermediate_size % 16 > 0,
        f"{shared} query heads per key head": shared > 64,
    }
    found = [name for name, missing in faults.items() if missing]
    return f"the fused graph does not have {', '.join(found)}" if found else None


def fused(graph: DecoderGraph, dtype: str, max_len: int) -> Fused | None:
    """The fused form of ``graph``, which is used up; ``None`` (and ``graph`` as it was) where there is none."""
    device = graph.embedding.device
    if device.type != "cuda" or dtype != "bfloat16" or find_spec("triton") is None:
        return None
    if unfused_reason(graph.config) is not None:
        return None
    from ..kernels.triton.launch import unusable_reason
    from .device_graph import DeviceGraph

    if unusable_reason(device) is not None:
        return None
    device_graph = DeviceGraph(graph, max_len)
    torch.cuda.empty_cache()
    return Fused(device_graph, invariance(device_graph))


def invariance(graph: DeviceGraph) -> tuple[bool, bool]:
    """Run the first layer and the head on a prompt in several cuts, and on windows in several batches, and compare raw
    logits bit for bit: (equal in all batches, equal for all cuts)."""
    probe = _Probe(graph)
    whole = probe.prompt((_PROMPT,))
    cuts = all(torch.equal(probe.prompt(cut), whole) for cut in _CHUNKINGS[1:])
    probe.prompt((_PROMPT,))
    windows = all(torch.equal(probe.windows(rows, width), whole[-width:].repeat(rows, 1)) for rows, width in _WINDOWS)
    return windows, windows and cuts


class _Probe:
    """The first layer of a graph over a small KV memory of its own, holding one row's prompt."""

    def __init__(self, graph: DeviceGraph) -> None:
        self._graph = copy.copy(graph)
        self._graph.layers = [replace(graph.layers[0])]
        self._group = self._graph.layers[0].group
        self._graph.windows = {self._group: graph.windows[self._group]}
        config, device = graph.config, graph.embedding.device
        slots = (2 + _PROMPT // _BLOCK) * _BLOCK
        memory = torch.zeros((2, slots, config.num_kv_heads, config.head_dim), dtype=graph.dtype, device=device)
        self._graph.attach(0, memory[0], memory[1])
        generator = torch.Generator().manual_seed(83)
        self._tokens = torch.randint(0, config.vocab_size, (_PROMPT,), generator=generator).to(device)
        self._table = torch.arange(1, 2 + _PROMPT // _BLOCK, device=device)

    def prompt(self, cut: Sequence[int]) -> torch.Tensor:
        """Logits [_PROMPT, V'] of the prompt in chunks of these lengths."""
        return torch.cat([self._logits(self._batch([at], length, None)) for at, length in _places(cut)])

    def windows(self, rows: int, width: int) -> torch.Tensor:
        """Logits [rows * width, V'] of the prompt's last ``width`` tokens in ``rows`` equal rows of a rectangle."""
        return self._logits(self._batch([_PROMPT - width] * rows, width, width))

    def _logits(self, batch: ForwardBatch) -> torch.Tensor:
        logits = self._graph.logits(self._graph.forward(batch, (), _BLOCK).hidden)
        return logits[:, :: max(1, logits.shape[1] // 512)]

    def _batch(self, starts: Sequence[int], length: int, width: int | None) -> ForwardBatch:
        device, rows = self._table.device, len(starts)
        positions = torch.cat([torch.arange(at, at + length, device=device) for at in starts])
        slots = self._table[positions // _BLOCK] * _BLOCK + positions % _BLOCK
        return ForwardBatch(
            tokens=self._tokens[positions],
            positions=positions,
            indices=torch.arange(rows, device=device),
            query_lens=[length] * rows,
            context_lens=list(starts),
            slots={self._group: slots},
            block_tables={self._group: self._table.repeat(rows, 1)},
            width=width,
        )


def _places(cut: Sequence[int]) -> Iterator[tuple[int, int]]:
    at = 0
    for length in cut:
        yield at, length
        at += length
