"""What a dense decoder is made of: one record that covers every family, read from a Hugging Face ``config.json``.

Knows no weights and no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import ModelError
from ..kernels.rope import RopeConfig


@dataclass(frozen=True)
class LayerConfig:
    """What differs between layers: its block group, its rotary scheme (``None`` = no positions)."""

    group: str
    rope: RopeConfig | None


@dataclass(frozen=True)
class DecoderConfig:
    """Every switch of the dense families.

    Sizes: ``hidden_size`` H, ``intermediate_size``, ``num_heads``/``num_kv_heads`` of ``head_dim`` D, ``vocab_size`` V.
    ``window``: keys a query of a sliding layer sees, its own included. ``scale``: factor on attention scores.
    ``qk_norm``: "none", "head" (each head alone) or "projection" (all heads together). ``pre_norm``/``post_norm``:
    norms before and after each block (post: on the block's output, before the residual). ``norm_offset``: the norm
    multiplies by offset + weight. Multipliers act on embeddings, on each block's output, and (as divisor) on logits.
    ``fused_names``: the checkpoint stores merged ``qkv_proj`` and ``gate_up_proj``. ``sandwich_names``: the norm before
    the feed-forward block is called ``pre_feedforward_layernorm`` (else ``post_attention_layernorm``).
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_len: int
    layers: tuple[LayerConfig, ...]
    scale: float
    eps: float = 1e-6
    activation: str = "silu"
    tied: bool = False
    window: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str = "none"
    pre_norm: bool = True
    post_norm: bool = False
    norm_offset: float = 0.0
    sandwich_names: bool = False
    fused_names: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def for_length(self, length: int) -> DecoderConfig:
        """The same model for rows of at most ``length`` tokens: a window that never closes is no window."""
        if self.window is None or self.window < length:
            return self
        layers = tuple(replace(layer, group="full") for layer in self.layers)
        return replace(self, layers=layers, window=None)


def decoder_config(hf_config: Mapping[str, Any], path: str) -> DecoderConfig:
    """Read a ``config.json``; ``path`` names the artifact in errors.

    Raises :class:`ModelError` for an architecture, rotary kind or switch that the dense graph does not have.
    """
    from .families import FAMILIES

    name = hf_config.get("model_type")
    architectures = hf_config.get("architectures") or []
    if name not in FAMILIES:
        shown = name or (architectures[0] if architectures else "none given")
        raise ModelError(path, f"architecture {shown!r} is not supported; supported are {', '.join(sorted(FAMILIES))}")
    for architecture in architectures:
        if not str(architecture).endswith(("ForCausalLM", "Model", "LMHeadModel")):
            raise ModelError(path, f"{architecture!r} is not a causal language model; a ...ForCausalLM is needed")
    return FAMILIES[name](Fields(hf_config, path))


class Fields:
    """A ``config.json`` whose missing or ill-typed fields are errors that name the field."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values = values
        self.path = path

    def fault(self, field: str, message: str) -> ModelError:
        return ModelError(self.path, f"config.json field {field!r} {message}")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(name, f"must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(name, f"must be a number, not {value!r}")
        return float(value)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """``None`` if the field says null; ``default`` if it is absent."""
        if name not in self.values:
            return default
        return None if self.values[name] is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.fault(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.fault(name, f"must be a string, not {value!r}")
        return value

    def items(self, name: str, length: int) -> list[Any] | None:
        """A list of ``length`` entries, or ``None`` if absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < length:
            raise self.fault(name, f"must be a list of {length} entries")
        return list(value[:length])

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.fault(name, "is missing")
        return value
