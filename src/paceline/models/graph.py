"""The dense decoder graph: embedding, layers, final norm, LM head, taps. Runs flat token rows; knows no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..core.batch import ForwardBatch, ForwardResult
from ..kernels.attention import plan_attention
from ..kernels.linear import Linear
from ..kernels.norm import RMSNorm
from ..kernels.rope import RopeConfig, RopeTable
from .config import DecoderConfig
from .layers import DecoderLayer, Step

HEAD_TILE = 32
"""Rows of one LM head product: one tile shape for any number of rows keeps them independent of each other."""


class Component(NamedTuple):
    """A part of a graph by name: ``owner`` calls what its ``attribute`` holds."""

    name: str
    owner: object
    attribute: str


@dataclass
class DecoderGraph:
    """All weights of a model, ready to run. ``windows``: block group -> sliding window or ``None``."""

    config: DecoderConfig
    embedding: torch.Tensor
    layers: list[DecoderLayer]
    norm: RMSNorm
    head: Linear
    ropes: dict[RopeConfig, RopeTable]
    windows: dict[str, int | None]

    def forward(self, batch: ForwardBatch, taps: Sequence[int], block_size: int, wide: bool = False) -> ForwardResult:
        """Run N tokens: hidden [N, H] after the final norm; taps [N, taps * H] in the order asked.

        Tap i >= 0 is the residual stream behind layer i, tap -1 the scaled embedding.
        """
        step = Step(
            plans={name: plan_attention(batch, name, block_size, window) for name, window in self.windows.items()},
            slots=dict(batch.slots),
            rotations={config: table.at(batch.positions) for config, table in self.ropes.items()},
            wide=wide,
        )
        x = self.embed(batch.tokens)
        kept = {-1: x}
        for index, layer in enumerate(self.layers):
            x = layer(x, step)
            if index in taps:
                kept[index] = x
        context = torch.cat([kept[tap] for tap in taps], -1) if taps else None
        return ForwardResult(self.norm(x), context)

    def components(self) -> Iterator[Component]:
        """The parts that a profile may tell apart, those that contain others before them."""
        for index, layer in enumerate(self.layers):
            attention, feed_forward = layer.attention.inner, layer.feed_forward.inner
            yield Component(f"layers.{index}.attention", layer.attention, "inner")
            yield Component(f"layers.{index}.attention.qkv", attention, "qkv")
            yield Component(f"layers.{index}.attention.out", attention, "out")
            yield Component(f"layers.{index}.feed_forward", layer.feed_forward, "inner")
            yield Component(f"layers.{index}.feed_forward.gate_up", feed_forward, "gate_up")
            yield Component(f"layers.{index}.feed_forward.down", feed_forward, "down")
        yield Component("norm", self, "norm")
        yield Component("head", self, "head")

    def attach(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values [slots, kv_heads, D] of layer ``number`` in the given memory."""
        self.layers[number].attention.inner.attach(keys, values)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, H], with the family's multiplier (rounded to the number format, as the checkpoints expect)."""
        x = self.embedding.index_select(0, tokens)
        if self.config.embedding_multiplier == 1.0:
            return x
        return x * torch.tensor(self.config.embedding_multiplier, dtype=x.dtype, device=x.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[M, H] -> [M, V] in float32, or float64 for a float64 graph."""
        parts = [self._logits(part) for part in torch.split(hidden, HEAD_TILE)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.config.logits_divisor != 1.0:
            logits = logits / self.config.logits_divisor
        if self.config.final_softcap is not None:
            logits = torch.tanh(logits / self.config.final_softcap) * self.config.final_softcap
        return logits
