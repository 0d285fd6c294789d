"""GGUF files as model artifacts: tensor names and metadata in the terms of Hugging Face checkpoints.

Knows the architectures of :data:`ARCHITECTURES`; the container is :mod:`.gguf`, the tokenizer :mod:`.gguf_tokenizer`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import ModelError
from .gguf import GGUFFile

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class GGUFArchitecture:
    """How one ``general.architecture`` maps to Hugging Face. ``permuted``: q and k rows were reordered for rope."""

    model_type: str
    class_name: str
    permuted: bool = False


ARCHITECTURES = {
    "llama": GGUFArchitecture("llama", "LlamaForCausalLM", permuted=True),
    "qwen3": GGUFArchitecture("qwen3", "Qwen3ForCausalLM"),
}

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")
#: Per-frequency divisors of long-context Llama models: they go into the configuration, not the weights.
_ROPE_FACTORS = "rope_freqs.weight"
#: Llama 3 rope scaling as published (Llama 3.1 and 3.2 model configurations); only ``factor`` differs among them.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class GGUFWeights:
    """Tensors of a GGUF file under Hugging Face names, decoded when asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._architecture = architecture_of(file)
        self._heads = _head_counts(file)
        self._stored: dict[str, str] = {}
        for stored in file.tensors:
            if stored != _ROPE_FACTORS:
                name = _translate(stored)
                self._stored[name if name is not None else stored] = stored

    def names(self) -> list[str]:
        return list(self._stored)

    def has(self, name: str) -> bool:
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored_name(name)].shape

    def get(self, name: str) -> torch.Tensor:
        """A fresh tensor: quantised ones as float32, others in the dtype they are stored in."""
        stored = self._stored_name(name)
        tensor = self._file.read(stored)
        for projection, heads in zip(("attn_q.", "attn_k."), self._heads, strict=True):
            if self._architecture.permuted and projection in stored:
                return _unpermute(tensor, heads)
        return tensor

    def _stored_name(self, name: str) -> str:
        if name not in self._stored:
            raise ModelError(str(self._file.path), f"does not hold tensor {name!r}")
        return self._stored[name]


def _translate(stored: str) -> str | None:
    """Hugging Face name of a GGUF tensor name, or ``None`` if it is none of the known ones."""
    stem, _, suffix = stored.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    layer = _LAYER.fullmatch(stem)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{suffix}"
    return None


def _unpermute(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from interleaved pairs (x0, y0, x1, y1, ...) back to halves (x0, x1, ..., y0, y1, ...)."""
    rows = tensor.shape[0]
    paired = tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return paired.transpose(1, 2).reshape(tensor.shape).contiguous()


def architecture_of(file: GGUFFile) -> GGUFArchitecture:
    """The file's architecture; raises :class:`ModelError` naming it if it cannot be run."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(str(file.path), f"architecture {name!r} is not supported in GGUF form; supported: {known}")
    if file.metadata.get(f"{name}.expert_count"):
        raise ModelError(str(file.path), f"architecture {name!r} with experts is not supported in GGUF form")
    return ARCHITECTURES[name]


def _required(file: GGUFFile, key: str) -> Any:
    full = f"{file.metadata['general.architecture']}.{key}"
    if full not in file.metadata:
        raise ModelError(str(file.path), f"metadata {full!r} is missing")
    return file.metadata[full]


def _optional(file: GGUFFile, key: str) -> Any:
    return file.metadata.get(f"{file.metadata['general.architecture']}.{key}")


def _head_counts(file: GGUFFile) -> tuple[int, int]:
    heads = _required(file, "attention.head_count")
    kv_heads = _optional(file, "attention.head_count_kv") or heads
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads < 1:
        raise ModelError(str(file.path), "models with a different number of heads per layer are not supported")
    return heads, kv_heads


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """What ``config.json`` of the same model would hold. Raises :class:`ModelError` naming missing metadata."""
    architecture = architecture_of(file)
    heads, kv_heads = _head_counts(file)
    hidden = _required(file, "embedding_length")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(str(file.path), "does not hold tensor 'token_embd.weight'")
    rotated = _optional(file, "rope.dimension_count")
    head_dim = _optional(file, "attention.key_length") or hidden // heads
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _required(file, "feed_forward_length"),
        "num_hidden_layers": _required(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _required(file, "context_length"),
        "rms_norm_eps": _shortest(_required(file, "attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(_optional(file, "rope.freq_base") or 10000.0),
        "rope_scaling": _rope_scaling(file, head_dim),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": "float32",
    }
    if rotated and rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    return config | special_ids(file)


def special_ids(file: GGUFFile) -> dict[str, int | None]:
    """Ids of the special tokens under the names that configurations use; ``None`` where the file names none."""
    prefix = "tokenizer.ggml."
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {name: file.metadata.get(prefix + key) for name, key in names.items()}


def gguf_eos_ids(file: GGUFFile) -> list[int]:
    """Ids that end a turn: the EOS token and, where the file names one, its end-of-turn token."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return list(dict.fromkeys(file.metadata[key] for key in keys if key in file.metadata))


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: metadata holds 32-bit floats, configurations decimals."""
    import numpy as np

    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any] | None:
    if _ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file, head_dim)
    kind = _optional(file, "rope.scaling.type")
    factor = _optional(file, "rope.scaling.factor") or _optional(file, "rope.scale_linear")
    if kind in (None, "none") and not factor:
        return None
    kind = kind or "linear"
    if kind == "none" or factor in (None, 0.0, 1.0):
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(str(file.path), f"rope scaling {kind!r} is not supported in GGUF form")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(factor)}
    original = _optional(file, "rope.scaling.original_context_length")
    if kind == "yarn" and original:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3_scaling(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """Recover the scaling parameters from the stored per-frequency divisors, and check that they give them back."""
    import torch

    stored = file.read(_ROPE_FACTORS).to(torch.float64)
    theta = float(_optional(file, "rope.freq_base") or 10000.0)
    scaling = {"rope_type": "llama3", "factor": _shortest(float(stored.max())), **_LLAMA3_SCALING}
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    expected = _llama3_divisors(frequencies, scaling)
    if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-3):
        raise ModelError(str(file.path), f"tensor {_ROPE_FACTORS!r} holds a rope scaling of an unknown kind")
    return scaling


def _llama3_divisors(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """[D/2] divisors: 1 for short wavelengths, ``factor`` for long ones, smooth between (Llama 3.1 reference)."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    divisors: torch.Tensor = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return divisors
