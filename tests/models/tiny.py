"""Tiny random checkpoints of every dense family, as transformers models and as artifacts of ours, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.masking_utils import eager_mask

from paceline.cache.groups import BlockGroupSpec
from paceline.cache.store import KVStore
from paceline.core.batch import ForwardBatch, ForwardResult
from paceline.models.binding import TargetBinding, load_target

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 5000.0,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.0, 4.0]}
BIASED = {"attention_bias": True, "mlp_bias": True}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", BIASED),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "llama-dynamic-rope": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": YARN, "attention_bias": True}),
    "qwen3-sliding": (
        "Qwen3",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
    ),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "mistral-full": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "smollm3": ("SmolLM3", {}),
    "smollm3-sliding": ("SmolLM3", {"use_sliding_window": True, "sliding_window": 24, "attention_bias": True}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": ("Phi3", {}),
    "phi3-partial-longrope": (
        "Phi3",
        {"rope_parameters": {**LONG, "partial_rotary_factor": 0.75, "rope_theta": 1e4}},
    ),
    "olmo2": ("Olmo2", {}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 12}),
    "gemma3_text": ("Gemma3Text", {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2}),
}


@dataclass
class Checkpoint:
    """An artifact in memory: what loading a model needs."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    identity: str = "tiny"

    @property
    def weights(self) -> Checkpoint:
        return self

    def names(self) -> list[str]:
        return list(self.tensors)

    def get(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.tensors


def reference(name: str, **overrides: Any) -> Any:
    """A random transformers model of a family, in float64 throughout."""
    family, switches = FAMILIES[name]
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **switches, **overrides})
    config._attn_implementation = "capped_float64" if family == "Gemma2" else "sdpa"
    model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            spread = 0.2 if "norm" in key or "bias" in key else 0.12
            parameter.add_(torch.randn_like(parameter) * spread)
    _keep_float64(model)
    return model


def _keep_float64(model: Any) -> None:
    """Make the reference's norms compute in float64: as written they drop to float32 inside."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            offset = 1.0 if type(module).__name__.startswith("Gemma") else 0.0
            eps = getattr(module, "variance_epsilon", None) or module.eps
            module.forward = _float64_norm(module.weight, offset, eps)


def _float64_norm(weight: torch.Tensor, offset: float, eps: float) -> Any:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (offset + weight)

    return forward


def _capped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with a soft cap in float64; the library's own form drops to float32 in the softmax."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = query @ key.transpose(2, 3) * options["scaling"]
    scores = torch.tanh(scores / options["softcap"]) * options["softcap"] + attention_mask
    return (torch.softmax(scores, -1) @ value).transpose(1, 2), None


transformers.AttentionInterface.register("capped_float64", _capped_attention)
transformers.AttentionMaskInterface.register("capped_float64", eager_mask)


def checkpoint(model: Any) -> Checkpoint:
    """The artifact that saving ``model`` would give."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return Checkpoint(model.config.to_dict(), tensors)


@dataclass
class Rows:
    """Block tables of a few rows over one store, with blocks in runs or scattered, as ``scattered`` says."""

    target: TargetBinding
    rows: int
    max_len: int = 512
    scattered: bool = True
    block_size: int = 16
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.rows
        width = -(-self.max_len // self.block_size)
        count = 1 + self.rows * width
        order = torch.arange(1, count)
        if self.scattered:
            order = order[torch.randperm(count - 1, generator=torch.Generator().manual_seed(5))]
        self.tables = {group.name: order.view(self.rows, width).clone() for group in self.target.kv_groups}
        blocks = {group.name: count for group in self.target.kv_groups}
        self.store = KVStore(self.target.kv_groups, blocks, self.block_size, self.target.kv_dtype)

    def batch(self, tokens: dict[int, Sequence[int]]) -> ForwardBatch:
        """One forward of the given rows' next tokens, in that order; does not advance the rows."""
        positions = [torch.arange(len(new)) + self.lengths[row] for row, new in tokens.items()]
        indices = torch.tensor(list(tokens))
        slots = {
            name: torch.cat(
                [
                    table[row][at // self.block_size] * self.block_size + at % self.block_size
                    for row, at in zip(tokens, positions, strict=True)
                ]
            )
            for name, table in self.tables.items()
        }
        needed = max(self.lengths[row] + len(new) for row, new in tokens.items())
        width = -(-needed // self.block_size)
        return ForwardBatch(
            tokens=torch.tensor([token for new in tokens.values() for token in new]),
            positions=torch.cat(positions),
            indices=indices,
            query_lens=[len(new) for new in tokens.values()],
            context_lens=[self.lengths[row] for row in tokens],
            slots=slots,
            block_tables={name: self._covered(table, tokens)[:, :width] for name, table in self.tables.items()},
        )

    def _covered(self, table: torch.Tensor, tokens: dict[int, Sequence[int]]) -> torch.Tensor:
        chosen = table[list(tokens)].clone()
        for place, row in enumerate(tokens):
            chosen[place, -(-(self.lengths[row] + len(tokens[row])) // self.block_size) :] = 0
        return chosen

    def run(self, tokens: dict[int, Sequence[int]], taps: Sequence[int] = ()) -> ForwardResult:
        """Run the rows' next tokens over this store and advance them."""
        self.target.attach(self.store)
        result = self.target.forward(self.batch(tokens), taps)
        for row, new in tokens.items():
            self.lengths[row] += len(new)
        return result

    def free_behind(self, group: BlockGroupSpec, keep: int) -> None:
        """Put scratch in place of the blocks that lie wholly before ``length - keep``."""
        for row, length in enumerate(self.lengths):
            gone = max(0, length - keep) // self.block_size
            self.tables[group.name][row, :gone] = 0


def target(model: Any, dtype: str = "float64", max_model_len: int | None = None) -> TargetBinding:
    """Our graph on the weights of ``model``."""
    return load_target(checkpoint(model), dtype, "cpu", max_model_len)
