"""EAGLE-3: one decoder layer over three fused taps of the target drafts a chain, with a head of few ids.

This module makes the drafter and says what it needs of the target; its model is in ``_eagle_layer``, what it does for
rows in ``_eagle_rows``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...cache.groups import BlockGroupSpec, LayerKV
from ...core.errors import DraftError
from ...kernels.backend import TORCH_DTYPES
from ...kernels.linear import Linear, make_linear
from ...kernels.norm import RMSNorm
from ...kernels.rope import RopeConfig, RopeTable
from ..base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView
from ._eagle_fused import FusedEagle3, FusedPlacer, fits
from ._eagle_layer import Eagle3Layer, Eagle3Model, Eagle3Shape, Eagle3Weights
from ._eagle_places import GROUP, Placer
from ._eagle_rows import Eagle3Rows


class Eagle3Drafter(DraftProvider):
    """Drafts with ``layer``; ``weight_bytes`` of its weights are its own."""

    id = "eagle3"
    external_tokens = True

    def __init__(self, layer: Eagle3Model, weight_bytes: int) -> None:
        self._layer: Eagle3Model | None = layer
        self.weight_bytes = weight_bytes

    @property
    def layer(self) -> Eagle3Model:
        if self._layer is None:
            raise DraftError("this drafter has been closed")
        return self._layer

    def kv_groups(self, view: TargetView) -> tuple[BlockGroupSpec, ...]:
        shape = self.layer.shape
        return (BlockGroupSpec(GROUP, (LayerKV(view.num_layers, shape.kv_heads, shape.head_dim, shape.head_dim),)),)

    def target_taps(self, view: TargetView) -> tuple[int, ...]:
        return self.layer.shape.taps

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        tables = view.tables
        if tables is None or tables.store is None:
            raise DraftError("a drafter with KV of its own needs row tables over a KV store")
        if view.hidden_size != self.layer.shape.target_hidden:
            needed = self.layer.shape.target_hidden
            raise DraftError(f"this eagle3 drafter reads taps of width {needed}, the target's are {view.hidden_size}")
        self.layer.attach(tables.store.keys(view.num_layers), tables.store.values(view.num_layers))
        layer = self.layer
        placer = FusedPlacer(layer, tables) if isinstance(layer, FusedEagle3) else Placer(layer, tables)
        return Eagle3Rows(layer, tables, draw, placer)

    def close(self) -> None:
        self._layer = None


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The layers whose outputs are read where no configuration names them: those before layers 2, L / 2 and L - 3."""
    low, middle, high = (min(max(layer - 1, -1), num_layers - 1) for layer in (2, num_layers // 2, num_layers - 3))
    return low, middle, high


def random_eagle3(
    view: TargetView,
    shape: Eagle3Shape | None = None,
    seed: int = 0,
    *,
    listed: int = 32000,
    embedding: torch.Tensor | None = None,
    sharpness: float = 1.0,
) -> Eagle3Drafter:
    """A drafter with random weights for the target of ``view``: what speed is measured with.

    ``shape``: its sizes; by default the target's width, heads of 128 with four queries to a key, a feed-forward block
    three times as wide, and a head of ``listed`` ids. ``embedding`` [V, H]: the target's, to share it; otherwise the
    drafter has one of its own. ``sharpness``: scale of the head. Equal arguments give equal weights on one device.
    """
    shape = shape or _default_shape(view, listed)
    make = _Maker(view, seed)
    size, width = shape.hidden, shape.head_dim
    own_embedding = embedding is None
    table = make.matrix(view.vocab_size, size, size**0.5) if embedding is None else embedding
    listed = min(shape.listed, view.vocab_size)
    weights = Eagle3Weights(
        embedding=table,
        fuse=make.linear(size, len(shape.taps) * shape.target_hidden),
        input_norm=make.norm(size, shape.eps),
        hidden_norm=make.norm(size, shape.eps),
        qkv=make.linear((shape.heads + 2 * shape.kv_heads) * width, 2 * size),
        out=make.linear(size, shape.heads * width),
        post_norm=make.norm(size, shape.eps),
        gate_up=make.linear(2 * shape.intermediate, size),
        down=make.linear(size, shape.intermediate),
        norm=make.norm(size, shape.eps),
        head=make.linear(listed, size, sharpness),
        rope=make.rope(shape, view.max_model_len),
        ids=None if listed == view.vocab_size else make.ids(view, listed),
    )
    shape, held = replace(shape, listed=listed), _nbytes(weights, own_embedding)
    fused = fits(shape, weights)
    layer = FusedEagle3(shape, weights, view.max_model_len) if fused else Eagle3Layer(shape, weights)
    return Eagle3Drafter(layer, held)


def _default_shape(view: TargetView, listed: int) -> Eagle3Shape:
    hidden, dim = view.hidden_size, min(128, view.hidden_size)
    heads = max(1, hidden // dim)
    return Eagle3Shape(
        hidden=hidden,
        target_hidden=hidden,
        heads=heads,
        kv_heads=max(1, heads // 4),
        head_dim=dim,
        intermediate=3 * hidden,
        listed=listed,
        taps=default_taps(view.num_layers),
    )


class _Maker:
    """Random weights in the target's number format, on its device."""

    def __init__(self, view: TargetView, seed: int) -> None:
        self._dtype = view.dtype
        self._torch_dtype = TORCH_DTYPES[view.dtype]
        self._device = torch.device(view.device)
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        """[rows, columns] of variance ``scale ** 2 / columns``."""
        wide = torch.float64 if self._torch_dtype == torch.float64 else torch.float32
        noise = torch.randn(rows, columns, generator=self._generator, device=self._device, dtype=wide)
        return noise.mul_(scale * columns**-0.5).to(self._torch_dtype)

    def linear(self, outputs: int, inputs: int, scale: float = 1.0) -> Linear:
        return make_linear(self.matrix(outputs, inputs, scale), None, dtype=self._dtype)

    def norm(self, width: int, eps: float) -> RMSNorm:
        return RMSNorm(torch.ones(width, device=self._device), eps, self._torch_dtype)

    def rope(self, shape: Eagle3Shape, length: int) -> RopeTable:
        config = RopeConfig(shape.head_dim, theta=shape.rope_theta, max_len=length, trained_len=length)
        return RopeTable(config, length, self._torch_dtype, self._device)

    def ids(self, view: TargetView, listed: int) -> torch.Tensor:
        """``listed`` ids of the vocabulary, the end ids among them, ascending."""
        order = torch.randperm(view.vocab_size, generator=self._generator, device=self._device)
        ends = torch.tensor([token for token in view.eos_ids if token < view.vocab_size], device=self._device)
        first = torch.cat([ends.to(torch.int64), order[~torch.isin(order, ends)]])
        return first[:listed].sort().values


def _nbytes(weights: Eagle3Weights, own_embedding: bool) -> int:
    """Bytes that the drafter alone holds."""
    parts = [getattr(weights, name) for name in weights.__dataclass_fields__]
    held = [int(part.nbytes) for part in parts if part is not None and part is not weights.embedding]
    return sum(held) + (weights.embedding.nbytes if own_embedding else 0)
