"""The target as the engine sees it: one forward over the rows' new tokens, logits, and what they promise (spec 2.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..cache.groups import BlockGroupSpec, LayerKV
from ..cache.store import KVStore
from ..core.batch import ForwardBatch, ForwardResult
from ..core.errors import ConfigError, ModelError
from ..kernels import attention, norm
from ..kernels.backend import TORCH_DTYPES, release_freed_memory, resolve_device, resolve_dtype
from ..kernels.linear import Linear
from .assembly import Assembler, WeightSource
from .batches import WIDE_QUERIES, join_results, split_wide
from .config import DecoderConfig, decoder_config
from .fused import Graph, fused
from .graph import Component

__all__ = ["Artifact", "Promises", "TargetBinding", "load_target", "resolve_device", "resolve_dtype"]


class Artifact(Protocol):
    """What loading needs of a model artifact."""

    @property
    def identity(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def weights(self) -> WeightSource: ...


@dataclass(frozen=True)
class Promises:
    """``row_invariant``: a row's results do not depend on batch-mates or window width. ``chunk_invariant``: nor on how
    its prompt was cut into chunks."""

    row_invariant: bool
    chunk_invariant: bool

    @property
    def exactness(self) -> str:
        return "bitwise" if self.row_invariant else "ties"


class TargetBinding:
    """A loaded target. ``attach`` a store before ``forward``; not safe for concurrent use.

    ``weight_bytes``: memory of everything held for the weights: packed products, lookup table, norms, rotary tables.
    ``records``: rollback is a length, so any number of windows can be undone; two are promised.
    """

    tail_split = False
    records = 2

    def __init__(self, graph: Graph, dtype: str, weight_bytes: int, promises: Promises, max_model_len: int) -> None:
        config = graph.config
        self.max_model_len = max_model_len
        self.config = config
        self.dtype = dtype
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_layers = config.num_layers
        self.kv_groups = kv_groups(config)
        self.kv_dtype = TORCH_DTYPES[dtype]
        self.device = graph.embedding.device
        self.weight_bytes = weight_bytes
        self.row_invariant = promises.row_invariant
        self.chunk_invariant = promises.chunk_invariant
        self.exactness = promises.exactness
        self._graph = graph
        self._block_size = 0

    def attach(self, store: KVStore, first_layer: int = 0) -> None:
        """Use the memory of ``store``, which was built from ``kv_groups`` and ``kv_dtype``.

        ``first_layer``: number in the store of this model's layer 0, where several models share the store.
        """
        if store.dtype != self.kv_dtype:
            raise ValueError(f"the KV store holds {store.dtype}, this model needs {self.kv_dtype}")
        self._block_size = store.block_size
        for number in range(self.num_layers):
            self._graph.attach(number, store.keys(first_layer + number), store.values(first_layer + number))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, taps: Sequence[int] = ()) -> ForwardResult:
        """Process the batch's N tokens and write their KV: hidden [N, H], taps [N, taps * H] in the order asked."""
        if self.dtype != "int8" or max(batch.query_lens) <= WIDE_QUERIES:
            return self._graph.forward(batch, taps, self._block_size)
        parts = split_wide(batch)
        results = [self._graph.forward(part.batch, taps, self._block_size, part.wide) for part in parts]
        return join_results(parts, results)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """LM head: [M, H] -> [M, V], float32 (float64 for a float64 target)."""
        return self._graph.logits(hidden)

    def components(self) -> Iterator[Component]:
        """Parts of the graph that a profile may tell apart."""
        return self._graph.components()

    def supports_taps(self, layers: Iterable[int]) -> bool:
        """Whether every layer can be tapped: -1 (embedding) and 0 .. L-1 (output of that layer)."""
        return all(-1 <= layer < self.num_layers for layer in layers)


def kv_groups(config: DecoderConfig) -> tuple[BlockGroupSpec, ...]:
    """Block groups in the order of their first layer; sliding layers have their own."""
    members: dict[str, list[LayerKV]] = {}
    for index, layer in enumerate(config.layers):
        members.setdefault(layer.group, []).append(
            LayerKV(index, config.num_kv_heads, config.head_dim, config.head_dim)
        )
    return tuple(
        BlockGroupSpec(name, tuple(layers), config.window if name == "sliding" else None)
        for name, layers in members.items()
    )


def load_target(artifact: Artifact, dtype: str, device: str, max_model_len: int | None) -> TargetBinding:
    """Load a target. ``dtype`` and ``device`` may be "auto"; ``max_model_len`` positions (``None`` = the model's own).

    Raises :class:`ModelError` for an unknown architecture or a damaged checkpoint, :class:`ConfigError` for a length
    beyond what the model serves.
    """
    config = decoder_config(artifact.config, artifact.identity)
    if max_model_len is not None and max_model_len > config.max_len:
        raise ConfigError("max_model_len", f"is {max_model_len}, but this model serves at most {config.max_len} tokens")
    length = max_model_len or config.max_len
    config = config.for_length(length)
    chosen, _ = resolve_dtype(dtype, device)
    place = torch.device(resolve_device(device))
    assembler = Assembler(config, artifact.weights, chosen, place, artifact.identity)
    with torch.inference_mode():
        graph = assembler.graph(length)
    if not torch.isfinite(graph.embedding[0]).all():
        raise ModelError(artifact.identity, "the embedding holds values that are not finite; the checkpoint is damaged")
    if place.type != "cpu":
        assembler.linears.clear()  # so that repacking frees each matrix as it goes
    with torch.inference_mode():
        on_device = fused(graph, chosen, length)
    if on_device is not None:
        return TargetBinding(on_device.graph, chosen, on_device.graph.nbytes, Promises(*on_device.invariant), length)
    promises = _promises(config, assembler.linears, graph.head, place, chosen)
    release_freed_memory()
    return TargetBinding(graph, chosen, assembler.nbytes, promises, length)


def _normed_shapes(config: DecoderConfig) -> list[tuple[int, int | None]]:
    """Widths that a norm sums over, with the number of heads where each head has its own weight."""
    dim, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
    inner: dict[str, list[tuple[int, int | None]]] = {
        "head": [(dim, heads + kv_heads)],
        "projection": [(dim * heads, None), (dim * kv_heads, None)],
    }
    return [(config.hidden_size, None), *inner.get(config.qk_norm, [])]


def _promises(
    config: DecoderConfig, linears: Sequence[Linear], head: Linear, device: torch.device, dtype: str
) -> Promises:
    """Bitwise only if every product, the norms, and attention are invariant here."""
    kv_dtype = TORCH_DTYPES[dtype]
    if device.type != "cpu":
        return Promises(False, False)
    others = attention.row_invariant(
        config.num_heads, config.num_kv_heads, config.head_dim, kv_dtype, config.attention_softcap
    ) and all(norm.row_invariant(width, kv_dtype, heads) for width, heads in _normed_shapes(config))
    layers = [linear for linear in linears if linear is not head]
    rows = others and head.row_invariant and all(linear.wide_invariant for linear in layers)
    return Promises(rows, rows and dtype != "int8")
