"""The model of an EAGLE-3 drafter: fused taps and token embeddings through one decoder layer to a reduced head.

Li et al., "EAGLE-3" (2025). Runs rows of pairs over a paged store; knows no round and no request.
Legend: B rows, C columns (pairs of a row), H hidden, T taps, V vocabulary, N listed ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...kernels.linear import Linear
from ...kernels.norm import RMSNorm
from ...kernels.rope import RopeTable, rotate
from ...kernels.shifted import ShiftedReads, attend_shifted


@dataclass(frozen=True)
class Eagle3Shape:
    """Sizes of a drafter. ``target_hidden``: width of one tap; ``taps``: target layers it reads, in order.

    ``listed``: ids its head knows. ``eps``: of all its norms.
    """

    hidden: int
    target_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    listed: int
    taps: tuple[int, ...]
    eps: float = 1e-6
    rope_theta: float = 10000.0

    @property
    def scale(self) -> float:
        """Factor on attention scores."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class Eagle3Weights:
    """``fuse`` [H, T * target hidden]; ``qkv`` and the two norms before it read embedding and hidden side by side;
    ``gate_up`` holds gates, then ups. ``ids`` [N] int64 ascending: full ids of the head's outputs; ``None`` = all."""

    embedding: torch.Tensor
    fuse: Linear
    input_norm: RMSNorm
    hidden_norm: RMSNorm
    qkv: Linear
    out: Linear
    post_norm: RMSNorm
    gate_up: Linear
    down: Linear
    norm: RMSNorm
    head: Linear
    rope: RopeTable
    ids: torch.Tensor | None


@dataclass(frozen=True)
class Pairs:
    """Where B * C pairs go: pair (token x_q, hidden h_(q-1)) has place q (spec 15.14).

    ``places`` [B, C] int64; ``slots`` [B * C] int64, scratch for pairs that are not to be kept; ``reads``: what their
    queries see.
    """

    places: torch.Tensor
    slots: torch.Tensor
    reads: ShiftedReads


class Eagle3Model(ABC):
    """A drafter's forward over its own keys and values, once they are attached. ``embedding`` [V, H]; ``ids`` [N]
    int64: full ids of the head's outputs, ``None`` = all."""

    def __init__(self, shape: Eagle3Shape, embedding: torch.Tensor, ids: torch.Tensor | None) -> None:
        self.shape = shape
        self.embedding = embedding
        self.ids = ids

    @abstractmethod
    def attach(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values [S, kv_heads, D] in the given memory."""

    @abstractmethod
    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """The target's taps [n, T * target hidden] as hidden states of the drafter [n, H]."""

    @abstractmethod
    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """Run pairs of ``tokens`` [n] and ``hidden`` [n, H], writing their keys and values: [n, H] before the norm,
        which is what the next pair of a chain takes as its hidden state."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the last :meth:`forward` gave, of all its pairs or of each row's last [n, H] -> [n, N] over the listed
        ids, in float32 or wider."""


class Eagle3Layer(Eagle3Model):
    """The torch form, on any device."""

    def __init__(self, shape: Eagle3Shape, weights: Eagle3Weights) -> None:
        super().__init__(shape, weights.embedding, weights.ids)
        self.weights = weights
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def attach(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._keys, self._values = keys, values

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        return self.weights.fuse(taps)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        weights = self.weights
        embedded = F.embedding(tokens, weights.embedding)
        both = torch.cat([weights.input_norm(embedded), weights.hidden_norm(hidden)], dim=1)
        residual = weights.out(self._attend(weights.qkv(both), pairs), hidden)
        gate, up = weights.gate_up(weights.post_norm(residual)).chunk(2, dim=1)
        return weights.down(F.silu(gate) * up, residual)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.weights.head(self.weights.norm(hidden))
        return logits if logits.dtype == torch.float64 else logits.float()

    def _attend(self, qkv: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """[n, (heads + 2 kv_heads) * D] -> [n, heads * D]; a pair at place q has rope position q - 1."""
        shape, keys, values = self.shape, self._keys, self._values
        if keys is None or values is None:
            raise RuntimeError("no KV store is attached to this drafter")
        # values that are not finite would spoil whoever reads their block later
        heads = torch.nan_to_num(qkv, 0.0, 0.0, 0.0).view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        both = shape.heads + shape.kv_heads
        cos, sin = self.weights.rope.at((pairs.places.flatten() - 1).clamp(min=0))
        rotated = rotate(heads[:, :both], cos, sin)
        keys.index_copy_(0, pairs.slots, rotated[:, shape.heads :])
        values.index_copy_(0, pairs.slots, heads[:, both:])
        rows, columns = pairs.places.shape
        queries = rotated[:, : shape.heads].view(rows, columns, shape.heads, shape.head_dim)
        return attend_shifted(queries, keys, values, pairs.reads, shape.scale).flatten(0, 1)
