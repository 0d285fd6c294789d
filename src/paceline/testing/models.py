"""Tiny random models of every dense family, saved as real artifacts (config, safetensors, tokenizer, chat template).

Made by ``transformers`` alone, so that they say nothing about paceline's own graphs. Legend: H hidden, V vocabulary.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tokenizer import IM_END, PAD, TOKENIZER_SIZE, write_tokenizer

if TYPE_CHECKING:
    import torch

#: What each family's config sets beyond the common sizes, so that its peculiar switches are exercised.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "qwen2": {},
    "smollm3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "granite": {
        "embedding_multiplier": 1.5,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.8,
        "logits_scaling": 1.25,
    },
    "phi3": {"partial_rotary_factor": 0.5, "bos_token_id": None},
    "olmo2": {},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 25.0,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 12,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}

#: Families whose norms compute ``x * (1 + weight)``.
_OFFSET_NORMS = frozenset({"gemma2", "gemma3_text"})


@dataclass(frozen=True)
class TinyModel:
    """What to build. Equal records give byte-equal weights.

    - ``vocab_size``: at least the tokenizer's 320; ids above have no text (a padded head).
    - ``context``: positions the model declares. ``shards``: 1 writes one safetensors file, 2 or more a sharded set.
    - ``mixing``: scale of the weights inside a layer; around 1 greedy text wanders and falls into loops again.
    - ``sharpness``: scale of the LM head; 4 leaves about two bits per token at temperature 0.8.
    - ``eos_token_ids``: what ``generation_config.json`` names as EOS.
    """

    family: str = "llama"
    seed: int = 0
    vocab_size: int = TOKENIZER_SIZE
    layers: int = 2
    hidden: int = 32
    context: int = 1024
    shards: int = 1
    mixing: float = 1.0
    sharpness: float = 4.0
    eos_token_ids: tuple[int, ...] = (IM_END,)

    @property
    def name(self) -> str:
        """Directory name: family and a digest of all fields."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"tiny-{self.family}-{digest[:10]}"


def tiny_model(model: TinyModel | str = "llama", root: Path | None = None) -> Path:
    """Directory of the model, built on first use. ``model``: a record or just a family name.

    Without ``root`` it lies in a directory of this process that is removed at exit.
    """
    spec = TinyModel(family=model) if isinstance(model, str) else model
    return _build_once(spec, _process_root() if root is None else root)


@functools.cache
def _process_root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="paceline-tiny-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@functools.cache
def _build_once(spec: TinyModel, root: Path) -> Path:
    path = root / spec.name
    if not (path / "config.json").exists():
        partial = Path(tempfile.mkdtemp(prefix=f".{spec.name}-", dir=root))
        _write(spec, partial)
        try:
            partial.rename(path)
        except OSError:  # another process was first
            shutil.rmtree(partial, ignore_errors=True)
    return path


def _write(spec: TinyModel, directory: Path) -> None:
    model = _random_model(spec)
    total = sum(p.numel() * p.element_size() for p in model.state_dict().values())
    with quiet_transformers():
        model.save_pretrained(directory, max_shard_size="5GB" if spec.shards == 1 else total // spec.shards)
    write_tokenizer(directory)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of ``transformers`` for a model of a few kilobytes."""
    from transformers import utils

    logging: Any = utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _config(spec: TinyModel) -> Any:
    from transformers import AutoConfig

    if spec.family not in FAMILIES:
        raise ValueError(f"unknown family {spec.family!r}; known are {', '.join(FAMILIES)}")
    sizes = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
        "intermediate_size": 2 * spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": spec.context,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": list(spec.eos_token_ids),
        "pad_token_id": PAD,
    }
    return AutoConfig.for_model(spec.family, **(sizes | dict(FAMILIES[spec.family])))


def _random_model(spec: TinyModel) -> Any:
    """The ``transformers`` model with the weights described by ``spec``, float32."""
    import torch
    import transformers

    library: Any = transformers
    model = library.AutoModelForCausalLM.from_config(_config(spec), dtype=torch.float32)
    generator = torch.Generator().manual_seed(spec.seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(_scaled(spec, name, noise))
    model.generation_config = library.GenerationConfig(eos_token_id=list(spec.eos_token_ids), pad_token_id=PAD)
    return model.eval()


def _scaled(spec: TinyModel, name: str, noise: torch.Tensor) -> torch.Tensor:
    """Weights of one parameter from standard normal ``noise``, by what the parameter is."""
    if "norm" in name:
        return 0.2 * noise + (0.0 if spec.family in _OFFSET_NORMS else 1.0)
    if noise.ndim == 1:  # a bias
        return 0.3 * noise
    if "embed_tokens" in name:
        return noise * float(spec.hidden**-0.5) if spec.family in _OFFSET_NORMS else noise
    scale = spec.sharpness if "lm_head" in name else spec.mixing
    return noise * float(scale / noise.shape[1] ** 0.5)
