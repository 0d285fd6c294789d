"""Random-weight targets of named public shapes, without files: for measuring speed and for tests of the device path.

Knows shapes and how to fill them; loading and running are those of any other checkpoint.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.errors import ModelError
from .binding import TargetBinding, load_target

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _qwen3(sizes: tuple[int, int, int, int, int], *, tied: bool, **others: Any) -> dict[str, Any]:
    """``sizes``: hidden size, layers, query heads, key/value heads, feed-forward size."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    common = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": tied,
    }
    return common | dict(zip(names, sizes, strict=True)) | others


SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-32b": _qwen3((5120, 64, 64, 8, 25600), tied=False),
    "qwen3-8b": _qwen3((4096, 36, 32, 8, 12288), tied=False),
    "qwen3-1.7b": _qwen3((2048, 28, 16, 8, 6144), tied=True),
    "qwen3-0.6b": _qwen3((1024, 28, 16, 8, 3072), tied=True),
    "llama-3.1-8b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": _LLAMA3_ROPE,
        "tie_word_embeddings": False,
    },
    "tiny": _qwen3((128, 2, 4, 2, 192), tied=False, head_dim=64, vocab_size=512, max_position_embeddings=4096),
    "null": _qwen3((64, 1, 2, 1, 128), tied=True, head_dim=64, vocab_size=2048, max_position_embeddings=8192),
}
"""Name -> ``config.json`` of a public model; "tiny" and "null" (one layer, 64 wide) are for tests and overheads."""


@dataclass
class RandomWeights:
    """A checkpoint drawn from noise: ``get`` makes the named tensor on ``device``, the same one every time.

    Matrices are normal with ``spread`` / sqrt(inputs), so that activations keep their size through the layers; norm
    weights lie around 1.
    """

    config: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    seed: int = 0
    spread: float = 1.0
    _shapes: dict[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._shapes = tensor_shapes(self.config)

    def names(self) -> list[str]:
        return list(self._shapes)

    def has(self, name: str) -> bool:
        return name in self._shapes

    def get(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self.device).manual_seed(self.seed * 1_000_003 + zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype)
        if len(shape) == 1:
            return noise.mul_(0.1).add_(1.0 if "norm" in name else 0.0)
        return noise.mul_(self.spread if "embed" in name else self.spread * shape[1] ** -0.5)


@dataclass(frozen=True)
class RandomArtifact:
    """What loading needs of a model, made up."""

    identity: str
    config: dict[str, Any]
    weights: RandomWeights


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face tensor names and shapes of a llama, qwen2 or qwen3 checkpoint with this ``config.json``."""
    hidden, vocab, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    dim = config.get("head_dim", hidden // heads)
    q, kv = heads * dim, config.get("num_key_value_heads", heads) * dim
    biased = config["model_type"] == "qwen2"
    layer = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        if biased:
            shapes |= {f"{prefix}self_attn.{name}_proj.bias": layer[f"self_attn.{name}_proj"][:1] for name in "qkv"}
        if config["model_type"] == "qwen3":
            shapes |= {f"{prefix}self_attn.{name}.weight": (dim,) for name in ("q_norm", "k_norm")}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def random_artifact(shape: str, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> RandomArtifact:
    """A made-up checkpoint of a named shape. Raises :class:`ModelError` for an unknown name."""
    if shape not in SHAPES:
        raise ModelError(shape, f"is no known shape; known are {', '.join(SHAPES)}")
    config = SHAPES[shape]
    weights = RandomWeights(config, torch.device(device), dtype, seed)
    return RandomArtifact(f"random/{shape}@{seed}", config, weights)


def random_target(
    shape: str, dtype: str = "bfloat16", device: str = "cuda", max_model_len: int | None = None, seed: int = 0
) -> TargetBinding:
    """Load a target of a named shape (see :data:`SHAPES`) with random weights, drawn on ``device``."""
    drawn = torch.float64 if dtype == "float64" else torch.bfloat16 if dtype in ("bfloat16", "int8") else torch.float32
    return load_target(random_artifact(shape, device, seed, drawn), dtype, device, max_model_len)
