"""The dense decoder on a GPU as five launches a layer: products with fused norms and epilogues, one attention.

Made from a :class:`DecoderGraph` by repacking its weights layer by layer. Safe to capture in a CUDA graph for batches
that were laid out on the device. Knows no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..core.batch import ForwardBatch, ForwardResult
from ..kernels.linear import PlainLinear
from ..kernels.norm import RMSNorm
from ..kernels.rope import RopeConfig, RopeTable
from ..kernels.triton import attend as attention
from ..kernels.triton.launch import DeviceWeight, Fused, embed, normed, product, sums_of
from .graph import Component, DecoderGraph
from .layers import DecoderLayer

_TURN = 8


@dataclass
class DeviceLayer:
    """One layer's packed weights and KV memory. ``gate_up`` has gates and ups in turns of 8 rows; the weights of the
    norms are folded into ``qkv`` and ``gate_up``."""

    qkv: DeviceWeight
    out: DeviceWeight
    gate_up: DeviceWeight
    down: DeviceWeight
    weights: torch.Tensor | None
    group: str
    rope: RopeConfig | None
    paged: attention.PagedLayer | None = None


class DeviceGraph:
    """Same interface as :class:`DecoderGraph`; runs on a GPU, or anywhere under Triton's interpreter."""

    def __init__(self, graph: DecoderGraph, max_len: int) -> None:
        """Repack ``graph``, which is used up: its layers are emptied one by one, so that no weight is held twice."""
        self.config = graph.config
        self.embedding = graph.embedding
        self.windows = graph.windows
        self.dtype = graph.embedding.dtype
        device = graph.embedding.device
        config = self.config
        self.shape = attention.HeadLayout(
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.scale,
            config.qk_norm == "head",
            config.eps,
        )
        self.split = attention.split_length(max_len)
        self.angles = {scheme: _angles(RopeTable(scheme, max_len, torch.float32, device)) for scheme in graph.ropes}
        self.norm = norm_weight(graph.norm)
        self.head = DeviceWeight(_matrix(graph.head), _bias(graph.head))
        self.layers: list[DeviceLayer] = []
        while graph.layers:
            self.layers.append(_packed(graph.layers.pop(0)))
        self.arrivals = attention.new_arrivals(device)

    @property
    def nbytes(self) -> int:
        """Memory of everything held for the weights."""
        weights = [self.head, *(w for layer in self.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down))]
        small = [self.norm, *self.angles.values(), *(one.weights for one in self.layers if one.weights is not None)]
        tensors = {t.data_ptr(): t for t in (self.embedding, *(w.matrix for w in weights), *small)}
        return sum(t.nbytes for t in tensors.values()) + sum(w.bias.nbytes for w in weights if w.bias is not None)

    def attach(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values [slots, kv_heads, D] of layer ``number`` in the given memory."""
        layer = self.layers[number]
        angles = None if layer.rope is None else self.angles[layer.rope]
        layer.paged = attention.PagedLayer(keys, values, layer.weights, angles)

    def components(self) -> Iterator[Component]:
        """None: a forward here is a few launches a layer, which a profiler of kernels tells apart."""
        return iter(())

    def forward(self, batch: ForwardBatch, taps: Sequence[int], block_size: int, wide: bool = False) -> ForwardResult:
        """Run N tokens: hidden [N, H] after the final norm; taps [N, taps * H] in the order asked."""
        store = (block_size, self.split)
        plans = {
            name: attention.plan_device(batch, name, self.shape, store, window) for name, window in self.windows.items()
        }
        space = attention.Workspace(self.arrivals)
        stream = _Stream(self, batch.tokens.shape[0], taps)
        embed(batch.tokens, self.embedding, self.config.embedding_multiplier, stream.place(-1), stream.sums[0])
        stream.keep(-1)
        for number, layer in enumerate(self.layers):
            self._layer(number, layer, plans[layer.group], space, stream)
        hidden = normed(stream.x, stream.sums[0], self.norm, self.config.eps)
        return ForwardResult(hidden, stream.context)

    def _layer(
        self, number: int, layer: DeviceLayer, plan: attention.DevicePlan, space: attention.Workspace, stream: _Stream
    ) -> None:
        config = self.config
        if layer.paged is None:
            raise RuntimeError("no KV store is attached to this graph")
        product(stream.x, layer.qkv, stream.qkv, Fused(stream.sums[0], stream.qkv_sums, eps=config.eps))
        mixed = attention.attend(plan, self.shape, layer.paged, stream.qkv, stream.qkv_sums, space)
        added = Fused(None, stream.sums[1], stream.x, factor=config.residual_multiplier)
        product(mixed, layer.out, stream.middle, added)
        product(stream.middle, layer.gate_up, stream.gated, Fused(stream.sums[1], eps=config.eps))
        added = Fused(None, stream.sums[0], stream.middle, factor=config.residual_multiplier)
        product(stream.gated, layer.down, stream.place(number), added)
        stream.keep(number)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[M, H] -> [M, V] in float32."""
        out = torch.empty((hidden.shape[0], self.config.vocab_size), dtype=torch.float32, device=hidden.device)
        product(hidden, self.head, out)
        return out if self.config.logits_divisor == 1.0 else out.div_(self.config.logits_divisor)


class _Stream:
    """Buffers of one forward: the residual stream ``x`` and its sums, what products hand on, and the taps."""

    def __init__(self, graph: DeviceGraph, rows: int, taps: Sequence[int]) -> None:
        config, shape = graph.config, graph.shape
        self._new = graph.embedding.new_empty
        self._rows, self._hidden = rows, config.hidden_size
        self._taps = list(taps)
        self.context = self._new((rows, len(taps) * self._hidden)) if taps else None
        self._spare = self._new((rows, self._hidden))
        self.x = self._spare
        self.middle = self._new((rows, self._hidden))
        self.qkv = self._new((rows, shape.width))
        self.gated = self._new((rows, config.intermediate_size))
        parts = sums_of(self._hidden)
        self.sums = [self._new((rows, parts), dtype=torch.float32) for _ in range(2)]
        self.qkv_sums = self._new((rows, shape.sums), dtype=torch.float32) if shape.norm else None

    def place(self, number: int) -> torch.Tensor:
        """Where the stream behind layer ``number`` goes: straight into its tap if it has one."""
        if number in self._taps:
            self.x = self._tap(self._taps.index(number))
        else:
            self.x = self._spare
        return self.x

    def keep(self, number: int) -> None:
        """Copy the stream to any further taps on the same layer."""
        for place, tap in enumerate(self._taps):
            if tap == number and place != self._taps.index(number):
                self._tap(place).copy_(self.x)

    def _tap(self, place: int) -> torch.Tensor:
        assert self.context is not None
        return self.context[:, place * self._hidden : (place + 1) * self._hidden]


def _angles(table: RopeTable) -> torch.Tensor:
    """[positions, D]: D/2 cosines, then D/2 sines."""
    half = table.dim // 2
    return torch.cat((table.table[:, 0, :half], table.table[:, 1, half:]), -1).contiguous()


def norm_weight(norm: RMSNorm) -> torch.Tensor:
    """The weight as the formula has it, float32 [..., width]."""
    return norm.weight[: norm.width] if norm.doubled else norm.weight


def _matrix(linear: object) -> torch.Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def _bias(linear: object) -> torch.Tensor | None:
    assert isinstance(linear, PlainLinear)
    return linear.bias


def _packed(layer: DecoderLayer) -> DeviceLayer:
    """Fold the norms into the matrices behind them, lay gates and ups in turns."""
    inner, ffn = layer.attention.inner, layer.feed_forward.inner
    assert layer.attention.before is not None and layer.feed_forward.before is not None
    weights = None
    if inner.qk_norm is not None:
        per_head = norm_weight(inner.qk_norm)
        weights = torch.stack((per_head[0], per_head[-1]))
    gate_up = _folded(_matrix(ffn.gate_up), layer.feed_forward.before)
    bias = _bias(ffn.gate_up)
    return DeviceLayer(
        qkv=DeviceWeight(_folded(_matrix(inner.qkv), layer.attention.before), _bias(inner.qkv)),
        out=DeviceWeight(_matrix(inner.out), _bias(inner.out)),
        gate_up=DeviceWeight(in_turns(gate_up), None if bias is None else in_turns(bias), gated=True),
        down=DeviceWeight(_matrix(ffn.down), _bias(ffn.down)),
        weights=weights,
        group=inner.group,
        rope=inner.rope,
    )


def _folded(matrix: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    """Columns times the norm's weight: the norm itself is then a factor per row."""
    return matrix.float().mul_(norm_weight(norm)).to(matrix.dtype)


def in_turns(stacked: torch.Tensor) -> torch.Tensor:
    """[2I, ...] gates, then ups -> the same rows in turns of 8 gates and 8 ups."""
    gate, up = (part.reshape(-1, _TURN, *part.shape[1:]) for part in stacked.chunk(2))
    return torch.stack((gate, up), 1).flatten(0, 2).contiguous()
