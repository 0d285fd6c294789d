"""The dense families as configurations of one graph: how each reads its ``config.json``. Knows no weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..kernels.activation import ACTIVATIONS
from ..kernels.rope import RopeConfig
from .config import DecoderConfig, Fields, LayerConfig
from .rope_fields import rope_by_layer_type, rope_config

FULL, SLIDING = "full", "sliding"
_GROUPS = {"full_attention": FULL, "sliding_attention": SLIDING}


def _common(fields: Fields, *, head_dim: int | None = None, theta: float = 10000.0, **switches: Any) -> DecoderConfig:
    """What all families share: sizes, one rotary scheme, full attention everywhere, then ``switches``."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    dim = fields.integer("head_dim", head_dim if head_dim is not None else hidden // heads)
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fault("num_key_value_heads", f"({kv_heads}) must divide num_attention_heads ({heads})")
    rope = rope_config(fields, dim, theta)
    base = DecoderConfig(
        family=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        max_len=_max_len(fields, rope),
        layers=(LayerConfig(FULL, rope),) * fields.integer("num_hidden_layers"),
        scale=dim**-0.5,
        eps=fields.number("rms_norm_eps", 1e-6),
        activation=_activation(fields, "hidden_act", "silu"),
        tied=fields.flag("tie_word_embeddings", False),
    )
    return replace(base, **switches)


def _max_len(fields: Fields, rope: RopeConfig) -> int:
    """Positions the checkpoint serves; most scaling kinds reach ``factor`` times beyond what the file declares."""
    declared = fields.integer("max_position_embeddings", 2048)
    if rope.kind in ("dynamic", "linear"):
        return max(declared, int(declared * rope.factor))
    return max(declared, int(rope.trained_len * rope.factor)) if rope.kind == "yarn" else declared


def _activation(fields: Fields, name: str, default: str) -> str:
    value = fields.text(name, default)
    if value not in ACTIVATIONS:
        raise fields.fault(name, f"is {value!r}; supported are {', '.join(sorted(ACTIVATIONS))}")
    return value


def _with_groups(config: DecoderConfig, groups: Sequence[str], window: int | None) -> DecoderConfig:
    """Put each layer in its block group; without a window every layer is full."""
    if window is None:
        return config
    layers = tuple(replace(layer, group=group) for layer, group in zip(config.layers, groups, strict=True))
    return replace(config, layers=layers, window=window if SLIDING in groups else None)


def _layer_groups(fields: Fields, default: Callable[[int], bool]) -> list[str]:
    """Block group per layer from ``layer_types``; ``default`` says which layers slide if the file does not."""
    count = fields.integer("num_hidden_layers")
    types = fields.items("layer_types", count)
    if types is None:
        return [SLIDING if default(i) else FULL for i in range(count)]
    unknown = sorted({str(kind) for kind in types if kind not in _GROUPS})
    if unknown:
        raise fields.fault("layer_types", f"names {unknown}; supported are {sorted(_GROUPS)}")
    return [_GROUPS[kind] for kind in types]


def _window(fields: Fields, default: int | None = None) -> int | None:
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return None
    return fields.integer("sliding_window", default) if fields.has("sliding_window") or default else None


def _optional_sliding(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Qwen's switch: off unless ``use_sliding_window``, then the layers from ``max_window_layers`` on."""
    if not fields.flag("use_sliding_window", False):
        return config
    first = fields.integer("max_window_layers", 28)
    return _with_groups(config, _layer_groups(fields, lambda i: i >= first), _window(fields, 4096))


def llama(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    return _common(fields, qkv_bias=bias, o_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def mistral(fields: Fields) -> DecoderConfig:
    config = _common(fields)
    return _with_groups(config, [SLIDING] * config.num_layers, _window(fields, 4096))


def qwen2(fields: Fields) -> DecoderConfig:
    return _optional_sliding(fields, _common(fields, qkv_bias=True))


def qwen3(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    return _optional_sliding(fields, _common(fields, head_dim=128, qkv_bias=bias, o_bias=bias, qk_norm="head"))


def smollm3(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    config = _common(
        fields,
        theta=2_000_000.0,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        tied=fields.flag("tie_word_embeddings", True),
    )
    interval = fields.integer("no_rope_layer_interval", 4)
    rotated = fields.items("no_rope_layers", config.num_layers)
    if rotated is None:
        rotated = [(i + 1) % interval != 0 for i in range(config.num_layers)]
    layers = tuple(layer if on else replace(layer, rope=None) for layer, on in zip(config.layers, rotated, strict=True))
    config = replace(config, layers=layers)
    if not fields.flag("use_sliding_window", False):
        return config
    return _with_groups(config, _layer_groups(fields, lambda i: not rotated[i]), _window(fields))


def granite(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    return _common(
        fields,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        scale=fields.number("attention_multiplier", 1.0),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )


def phi3(fields: Fields) -> DecoderConfig:
    config = _common(fields, fused_names=True, eps=fields.number("rms_norm_eps", 1e-5))
    return _with_groups(config, [SLIDING] * config.num_layers, _window(fields))


def olmo2(fields: Fields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    return _common(
        fields,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="projection",
        pre_norm=False,
        post_norm=True,
        eps=fields.number("rms_norm_eps", 1e-5),
    )


def _gemma(fields: Fields, **switches: Any) -> DecoderConfig:
    """What Gemma 2 and 3 share: (1 + w) norms around both blocks, scaled embeddings, tanh-GELU, tied head."""
    if fields.flag("use_bidirectional_attention", False):
        raise fields.fault("use_bidirectional_attention", "is true; only causal attention is supported")
    bias = fields.flag("attention_bias", False)
    return _common(
        fields,
        head_dim=256,
        max_len=fields.integer("max_position_embeddings", 8192),
        qkv_bias=bias,
        o_bias=bias,
        post_norm=True,
        sandwich_names=True,
        norm_offset=1.0,
        activation=_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        tied=fields.flag("tie_word_embeddings", True),
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        # the checkpoints were trained with this factor in single precision
        embedding_multiplier=float(np.float32(fields.integer("hidden_size") ** 0.5)),
        **switches,
    )


def gemma2(fields: Fields) -> DecoderConfig:
    config = _gemma(
        fields,
        attention_softcap=fields.optional_number("attn_logit_softcapping", 50.0),
        final_softcap=fields.optional_number("final_logit_softcapping", 30.0),
    )
    return _with_groups(config, _layer_groups(fields, lambda i: i % 2 == 0), _window(fields, 4096))


def gemma3_text(fields: Fields) -> DecoderConfig:
    config = _gemma(
        fields,
        qk_norm="head",
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
    )
    pattern = fields.integer("sliding_window_pattern", 6)
    groups = _layer_groups(fields, lambda i: (i + 1) % pattern != 0)
    ropes = rope_by_layer_type(fields, config.head_dim, 1_000_000.0, 10_000.0)
    schemes = {_GROUPS[name]: scheme for name, scheme in ropes.items()}
    layers = tuple(replace(layer, rope=schemes[group]) for layer, group in zip(config.layers, groups, strict=True))
    return _with_groups(replace(config, layers=layers), groups, _window(fields, 4096))


FAMILIES: dict[str, Callable[[Fields], DecoderConfig]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "smollm3": smollm3,
    "granite": granite,
    "phi3": phi3,
    "olmo2": olmo2,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
}
