"""Builds the dense graph from a checkpoint, layer by layer, so that no weight is held twice. Knows tensor names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..core.errors import ModelError
from ..kernels.activation import ACTIVATIONS
from ..kernels.backend import TORCH_DTYPES
from ..kernels.linear import Linear, make_linear
from ..kernels.norm import RMSNorm
from ..kernels.rope import RopeTable
from .config import DecoderConfig
from .graph import DecoderGraph
from .layers import Attention, Block, DecoderLayer, FeedForward

_IGNORED = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")


class WeightSource(Protocol):
    """Tensors of a checkpoint by their Hugging Face names."""

    def names(self) -> list[str]: ...

    def get(self, name: str) -> torch.Tensor: ...

    def has(self, name: str) -> bool: ...


class Assembler:
    """Takes tensors out of ``source``, checks their shapes, converts and packs them; counts bytes in ``nbytes``.

    ``path`` names the artifact in errors.
    """

    def __init__(
        self, config: DecoderConfig, source: WeightSource, dtype: str, device: torch.device, path: str
    ) -> None:
        self.config = config
        self.source = source
        self.dtype = dtype
        self.torch_dtype = TORCH_DTYPES[dtype]
        self.device = device
        self.path = path
        self.nbytes = 0
        self.linears: list[Linear] = []
        self._taken: set[str] = set()
        self._prefix = self._find_prefix()

    def graph(self, max_len: int) -> DecoderGraph:
        """Build everything; ``max_len`` positions get rotary tables. Raises :class:`ModelError` naming the tensor."""
        config = self.config
        layers = [self._layer(index) for index in range(config.num_layers)]
        norm = self._norm("norm", (config.hidden_size,))
        embedding = self._tensor("embed_tokens.weight", (config.vocab_size, config.hidden_size))
        embedding = embedding.to(self.torch_dtype, copy=True)
        head = self._head(embedding)
        self.nbytes += embedding.nbytes
        self._refuse_left_over()
        schemes = {layer.rope for layer in config.layers if layer.rope is not None}
        ropes = {scheme: RopeTable(scheme, max_len, self.torch_dtype, self.device) for scheme in schemes}
        self.nbytes += sum(table.nbytes for table in ropes.values())
        groups = dict.fromkeys(layer.group for layer in config.layers)
        windows = {name: config.window if name == "sliding" else None for name in groups}
        return DecoderGraph(config, embedding, layers, norm, head, ropes, windows)

    def _head(self, embedding: torch.Tensor) -> Linear:
        """The LM head; a tied one is packed from the embedding, which stays as the lookup table."""
        if not self.config.tied:
            return self._linear_named(["lm_head"], [self.config.vocab_size], self.config.hidden_size, False, False)
        self._taken.add("lm_head.weight")
        head = self._pack(embedding, None)
        if getattr(head, "weight", None) is embedding:
            self.nbytes -= embedding.nbytes  # the plain product reads the table itself
        return head

    def _layer(self, index: int) -> DecoderLayer:
        config, name = self.config, f"layers.{index}."
        hidden = (config.hidden_size,)
        before_ffn = "pre_feedforward_layernorm" if config.sandwich_names else "post_attention_layernorm"
        return DecoderLayer(
            Block(
                self._attention(index, name + "self_attn."),
                self._norm(name + "input_layernorm", hidden) if config.pre_norm else None,
                self._norm(name + "post_attention_layernorm", hidden) if config.post_norm else None,
                config.residual_multiplier,
            ),
            Block(
                self._feed_forward(name + "mlp."),
                self._norm(name + before_ffn, hidden) if config.pre_norm else None,
                self._norm(name + "post_feedforward_layernorm", hidden) if config.post_norm else None,
                config.residual_multiplier,
            ),
        )

    def _attention(self, index: int, name: str) -> Attention:
        config, layer = self.config, self.config.layers[index]
        widths = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        names = ["qkv_proj"] if config.fused_names else ["q_proj", "k_proj", "v_proj"]
        rows = [sum(widths)] if config.fused_names else widths
        attention = Attention(
            qkv=self._linear(name, names, rows, config.hidden_size, config.qkv_bias),
            out=self._linear(name, ["o_proj"], [config.hidden_size], widths[0], config.o_bias),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.scale,
            group=layer.group,
            rope=layer.rope,
            softcap=config.attention_softcap,
        )
        if config.qk_norm == "projection":
            attention.q_norm = self._norm(name + "q_norm", (widths[0],))
            attention.k_norm = self._norm(name + "k_norm", (widths[1],))
        elif config.qk_norm == "head":
            attention.qk_norm = self._head_norms(name)
        return attention

    def _head_norms(self, name: str) -> RMSNorm:
        """One norm over queries and keys as heads: the query weight for every query head, then the key weight."""
        config = self.config
        parts = [
            self._norm_weight(name + part, (config.head_dim,)).expand(heads, -1)
            for part, heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads))
        ]
        norm = RMSNorm(torch.cat(parts), config.eps, self.torch_dtype)
        self.nbytes += norm.nbytes
        return norm

    def _feed_forward(self, name: str) -> FeedForward:
        config = self.config
        size, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        names = ["gate_up_proj"] if config.fused_names else ["gate_proj", "up_proj"]
        rows = [2 * size] if config.fused_names else [size, size]
        return FeedForward(
            self._linear(name, names, rows, hidden, bias),
            self._linear(name, ["down_proj"], [hidden], size, bias),
            ACTIVATIONS[config.activation],
        )

    def _norm(self, name: str, shape: tuple[int, ...]) -> RMSNorm:
        norm = RMSNorm(self._norm_weight(name, shape), self.config.eps, self.torch_dtype)
        self.nbytes += norm.nbytes
        return norm

    def _norm_weight(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        weight = self._tensor(f"{name}.weight", shape)
        weight = weight.to(torch.float64 if self.dtype == "float64" else torch.float32, copy=True)
        return weight + self.config.norm_offset if self.config.norm_offset else weight

    def _linear(self, name: str, parts: Sequence[str], rows: Sequence[int], inputs: int, bias: bool) -> Linear:
        return self._linear_named([name + part for part in parts], rows, inputs, bias)

    def _linear_named(
        self, names: Sequence[str], rows: Sequence[int], inputs: int, bias: bool, prefixed: bool = True
    ) -> Linear:
        """One product from the stacked weights ``names`` with ``rows`` outputs each: a copy, for what is kept must not
        hold on to the checkpoint's file."""
        weights = [
            self._tensor(f"{name}.weight", (count, inputs), prefixed) for name, count in zip(names, rows, strict=True)
        ]
        biases = None
        if bias:
            stacked = zip(names, rows, strict=True)
            biases = torch.cat([self._tensor(f"{name}.bias", (count,), prefixed) for name, count in stacked])
        return self._pack(torch.cat(weights), biases)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        linear = make_linear(weight, bias, dtype=self.dtype)
        self.linears.append(linear)
        self.nbytes += linear.nbytes
        return linear

    def _tensor(self, name: str, shape: tuple[int, ...], prefixed: bool = True) -> torch.Tensor:
        full = self._prefix + name if prefixed else name
        if not self.source.has(full):
            raise ModelError(self.path, f"tensor {full!r} is missing from the checkpoint")
        self._taken.add(full)
        tensor = self.source.get(full)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                self.path, f"tensor {full!r} has shape {tuple(tensor.shape)} where config.json asks for {shape}"
            )
        if not tensor.is_floating_point():
            raise ModelError(self.path, f"tensor {full!r} is {tensor.dtype}; quantised checkpoints are not supported")
        return tensor.to(self.device)

    def _find_prefix(self) -> str:
        """``model.`` in checkpoints of a causal language model, nothing in those of its body alone."""
        for prefix in ("model.", ""):
            if self.source.has(f"{prefix}embed_tokens.weight"):
                return prefix
        raise ModelError(self.path, "tensor 'model.embed_tokens.weight' is missing from the checkpoint")

    def _refuse_left_over(self) -> None:
        left = [name for name in self.source.names() if name not in self._taken and not name.endswith(_IGNORED)]
        if left:
            shown = ", ".join(sorted(left)[:3])
            raise ModelError(self.path, f"{len(left)} tensors have no place in a {self.config.family} model: {shown}")
