"""Reads rotary schemes from a ``config.json``, in the flat form of older files and the nested form of newer ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..kernels.rope import KINDS, RopeConfig
from .config import Fields

_ALIASES = {"su": "longrope", "mrope": "default"}
_LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_config(fields: Fields, head_dim: int, theta: float = 10000.0) -> RopeConfig:
    """The one rotary scheme of a model; ``theta`` is the family's default base."""
    parameters = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    return _scheme(fields, parameters, head_dim, fields.number("rope_theta", theta))


def rope_by_layer_type(fields: Fields, head_dim: int, full: float, sliding: float) -> dict[str, RopeConfig]:
    """Schemes of full and sliding layers; ``full`` and ``sliding`` are the default bases.

    Older files give the bases as ``rope_theta`` and ``rope_local_base_freq``, with ``rope_scaling`` for full layers.
    """
    nested = fields.values.get("rope_parameters") or {}
    if not any(name in nested for name in _LAYER_TYPES):
        nested = {"full_attention": nested or fields.values.get("rope_scaling") or {}}
    bases = {
        "full_attention": fields.number("rope_theta", full),
        "sliding_attention": fields.number("rope_local_base_freq", sliding),
    }
    return {name: _scheme(fields, nested.get(name) or {}, head_dim, bases[name]) for name in _LAYER_TYPES}


def _scheme(fields: Fields, parameters: Mapping[str, Any], head_dim: int, theta: float) -> RopeConfig:
    inner = Fields(parameters, fields.path)
    name = inner.text("rope_type", inner.text("type", "default"))
    kind = _ALIASES.get(name, name)
    if kind not in KINDS:
        raise fields.fault("rope_type", f"is {name!r}; supported are {', '.join(KINDS)}")
    share = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    max_len = fields.integer("max_position_embeddings", 2048)
    trained = _trained_len(fields, inner, max_len)
    dim = int(head_dim * share)
    config = RopeConfig(
        dim=dim,
        theta=inner.number("rope_theta", theta),
        kind=kind,
        factor=_factor(inner, kind, max_len / trained),
        max_len=max_len,
        trained_len=trained,
        low_freq_factor=inner.number("low_freq_factor", 1.0),
        high_freq_factor=inner.number("high_freq_factor", 4.0),
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        truncate=inner.flag("truncate", True),
        attention_factor=inner.optional_number("attention_factor"),
        mscale=inner.optional_number("mscale"),
        mscale_all_dim=inner.optional_number("mscale_all_dim"),
        short_factor=_factors(inner, "short_factor", kind, dim),
        long_factor=_factors(inner, "long_factor", kind, dim),
    )
    if dim % 2 or dim < 2:
        raise fields.fault("partial_rotary_factor", f"gives {dim} rotated features; an even number is needed")
    return config


def _trained_len(fields: Fields, inner: Fields, max_len: int) -> int:
    """A value at the top level wins over the one among the rotary parameters."""
    name = "original_max_position_embeddings"
    return fields.integer(name, inner.integer(name, max_len))


def _factor(inner: Fields, kind: str, implied: float) -> float:
    if kind == "default":
        return 1.0
    if kind in ("yarn", "longrope"):
        return inner.number("factor", implied)
    return inner.number("factor")


def _factors(inner: Fields, name: str, kind: str, dim: int) -> tuple[float, ...]:
    if kind != "longrope":
        return ()
    values = inner.items(name, dim // 2)
    if values is None or len(inner.values[name]) != dim // 2:
        raise inner.fault(name, f"must list {dim // 2} numbers")
    return tuple(float(value) for value in values)
