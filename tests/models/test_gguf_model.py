"""GGUF files as artifacts: names, values and configuration are those of the Hugging Face model they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.gguf_files import GGUFLayout, floats, model_metadata, permute, stored_name, tiny_tokenizer

from paceline.core.errors import ModelError
from paceline.models.artifact import open_artifact
from paceline.models.gguf_model import ARCHITECTURES

LIBRARY: Any = transformers
SIZES: dict[str, Any] = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": False,
}


def reference(architecture: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = LIBRARY.AutoConfig.for_model(ARCHITECTURES[architecture].model_type, **(SIZES | settings))
    model = LIBRARY.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model


def to_layout(architecture: str, model: Any) -> GGUFLayout:
    """The GGUF form of a model, made independently of the code under test."""
    config = model.config.to_dict()
    layout = GGUFLayout(model_metadata(architecture, config) | tiny_tokenizer())
    if config.get("head_dim"):
        layout.metadata[f"{architecture}.attention.key_length"] = config["head_dim"]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        value = tensor.numpy()
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            value = permute(value, heads[part])
        layout.tensors[stored_name(name)] = floats(value)
    return layout


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    ],
)
def test_the_model_that_comes_back_is_the_one_that_was_stored(
    architecture: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Configuration and tensors alone rebuild a model whose logits are bit-equal."""
    model = reference(architecture, **settings)
    artifact = open_artifact(str(to_layout(architecture, model).write(tmp_path / "m.gguf")))
    known = dict(artifact.config)
    rebuilt = LIBRARY.AutoModelForCausalLM.from_config(
        LIBRARY.AutoConfig.for_model(known.pop("model_type"), **known), dtype=torch.float32
    ).eval()
    stored = {name: artifact.weights.get(name) for name in artifact.weights.names()}
    assert all(tuple(tensor.shape) == artifact.weights.shape(name) for name, tensor in stored.items())
    missing, unexpected = rebuilt.load_state_dict(stored, strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if settings.get("tie_word_embeddings") else [])
    rebuilt.tie_weights()
    tokens = torch.arange(20)[None] * 7 % 261
    with torch.no_grad():
        assert torch.equal(rebuilt(tokens).logits, model(tokens).logits)


def metadata_only(architecture: str = "llama", **extra: Any) -> GGUFLayout:
    layout = GGUFLayout(model_metadata(architecture, SIZES) | tiny_tokenizer())
    layout.metadata |= {key.replace("__", "."): value for key, value in extra.items()}
    layout.tensors["token_embd.weight"] = floats(np.zeros((261, 32)))
    return layout


def config_of(layout: GGUFLayout, tmp_path: Path) -> dict[str, Any]:
    return open_artifact(str(layout.write(tmp_path / "m.gguf"))).config


def test_numbers_are_the_decimals_that_the_model_was_published_with(tmp_path: Path) -> None:
    config = config_of(metadata_only(), tmp_path)
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 100000.0
    assert config["eos_token_id"] == config["pad_token_id"] == 2
    assert config["bos_token_id"] == 1


def test_rope_scaling_is_carried_over(tmp_path: Path) -> None:
    layout = metadata_only()
    assert config_of(layout, tmp_path)["rope_scaling"] is None
    layout.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_of(layout, tmp_path)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    layout.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 32}
    assert config_of(layout, tmp_path)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    layout.metadata["llama.rope.scaling.type"] = "longrope"
    with pytest.raises(ModelError, match="longrope"):
        config_of(layout, tmp_path)


def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    """The stored divisors are what ``transformers`` divides its frequencies by."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(**SIZES | {"rope_parameters": scaling | {"rope_theta": 100000.0}, "head_dim": 64})
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 100000.0 ** -(torch.arange(0, 64, 2).double() / 64)
    layout = metadata_only(llama__attention__key_length=64)
    layout.tensors["rope_freqs.weight"] = floats((plain / scaled).numpy())
    artifact = open_artifact(str(layout.write(tmp_path / "m.gguf")))
    assert artifact.config["rope_scaling"] == scaling
    assert not artifact.weights.has("rope_freqs.weight")
    layout.tensors["rope_freqs.weight"] = floats((plain / scaled).numpy() + 0.1)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        config_of(layout, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.attention.head_count": [4, 2]}, "heads per layer"),
        ({"llama.block_count": None}, r"'llama\.block_count' is missing"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    layout = metadata_only()
    layout.metadata |= change
    layout.metadata = {key: value for key, value in layout.metadata.items() if value is not None}
    with pytest.raises(ModelError, match=rf"m\.gguf.*{message}"):
        config_of(layout, tmp_path)


def test_absent_and_unknown_tensors(tmp_path: Path) -> None:
    layout = metadata_only()
    layout.tensors["blk.0.mystery.weight"] = floats(np.zeros(3))
    weights = open_artifact(str(layout.write(tmp_path / "m.gguf"))).weights
    assert weights.has("blk.0.mystery.weight")  # left to the reader of the weights, which reports what it cannot use
    with pytest.raises(ModelError, match=r"m\.gguf.*'model\.norm\.weight'"):
        weights.get("model.norm.weight")
    del layout.tensors["token_embd.weight"]
    with pytest.raises(ModelError, match=r"token_embd\.weight"):
        config_of(layout, tmp_path)
