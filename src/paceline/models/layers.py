"""One decoder layer of the dense graph: attention and feed-forward around a residual stream. Knows no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from ..kernels.activation import Activation, gated
from ..kernels.attention import AttentionPlan, attend
from ..kernels.linear import Linear
from ..kernels.norm import RMSNorm
from ..kernels.rope import RopeConfig, rotate


@dataclass(frozen=True)
class Step:
    """What all layers of one forward share: plans and slots by block group, rotations by scheme, and whether the rows
    belong to long prompt chunks (``wide``)."""

    plans: dict[str, AttentionPlan]
    slots: dict[str, torch.Tensor]
    rotations: dict[RopeConfig, tuple[torch.Tensor, torch.Tensor]]
    wide: bool


@dataclass
class Attention:
    """Attention block. ``qkv`` yields queries, keys and values side by side [N, (heads + 2 kv_heads) * D].

    ``qk_norm`` acts on queries and keys as heads [N, heads + kv_heads, D]; ``q_norm``/``k_norm`` on whole projections.
    """

    qkv: Linear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    group: str
    rope: RopeConfig | None
    softcap: float | None = None
    qk_norm: RMSNorm | None = None
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None

    def attach(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values [slots, kv_heads, D] of this layer in the given memory."""
        self.keys, self.values = keys, values

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step) -> torch.Tensor:
        """[N, H] -> [N, H], with the residual added if given. Writes the new keys and values to their slots."""
        if self.keys is None or self.values is None:
            raise RuntimeError("no KV store is attached to this graph")
        qkv = self.qkv(x, None, step.wide)
        both = (self.heads + self.kv_heads) * self.head_dim
        # values that are not finite would spoil whoever reads their block as hidden keys later
        qkv[:, self.heads * self.head_dim :].nan_to_num_(0.0, 0.0, 0.0)
        qk = self._normed(qkv[:, :both])
        if self.rope is not None:
            qk = rotate(qk, *step.rotations[self.rope])
        slots = step.slots[self.group]
        self.keys.index_copy_(0, slots, qk[:, self.heads :])
        self.values.index_copy_(0, slots, qkv[:, both:].view(-1, self.kv_heads, self.head_dim))
        mixed = attend(step.plans[self.group], qk[:, : self.heads], self.keys, self.values, self.scale, self.softcap)
        return self.out(mixed, residual, step.wide)

    def _normed(self, qk: torch.Tensor) -> torch.Tensor:
        """[N, (heads + kv_heads) * D] -> [N, heads + kv_heads, D], normed as the family does."""
        if self.q_norm is not None and self.k_norm is not None:
            split = self.heads * self.head_dim
            qk = torch.cat((self.q_norm(qk[:, :split]), self.k_norm(qk[:, split:])), -1)
        heads = qk.view(-1, self.heads + self.kv_heads, self.head_dim)
        return heads if self.qk_norm is None else self.qk_norm(heads)


@dataclass
class FeedForward:
    """Gated feed-forward block on a merged gate/up product."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step) -> torch.Tensor:
        """[N, H] -> [N, H], with the residual added if given."""
        return self.down(gated(self.activation, self.gate_up(x, None, step.wide)), residual, step.wide)


Inner = TypeVar("Inner", Attention, FeedForward)


@dataclass
class Block(Generic[Inner]):
    """A sub-layer in the residual stream: norm before, norm after, multiplier, each if the family has it."""

    inner: Inner
    before: RMSNorm | None
    after: RMSNorm | None
    multiplier: float

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """[N, H] -> [N, H]: the residual stream behind this sub-layer."""
        normed = x if self.before is None else self.before(x)
        if self.after is None and self.multiplier == 1.0:
            return self.inner(normed, x, step)
        out = self.inner(normed, None, step)
        if self.after is not None:
            out = self.after(out)
        return torch.add(x, out, alpha=self.multiplier)


@dataclass
class DecoderLayer:
    """Attention, then feed-forward."""

    attention: Block[Attention]
    feed_forward: Block[FeedForward]

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """[N, H] -> [N, H]: the raw residual stream, which is what a tap on this layer reads."""
        return self.feed_forward(self.attention(x, step), step)
