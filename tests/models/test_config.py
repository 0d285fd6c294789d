"""Reading ``config.json``: old and new spellings mean the same, and what cannot be run is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.errors import ModelError
from paceline.kernels.rope import RopeConfig
from paceline.models.config import decoder_config

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def rope(**fields: Any) -> RopeConfig:
    found = decoder_config({**BASE, **fields}, "here").layers[0].rope
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["mamba", "gpt2", "mixtral", "qwen3_moe", None])
def test_unknown_architectures_are_refused_by_name(name: str | None) -> None:
    fields = {**BASE, "model_type": name, "architectures": ["Some" if name is None else name]}
    with pytest.raises(ModelError, match=r"here: architecture .*(mamba|gpt2|mixtral|qwen3_moe|Some).*supported are"):
        decoder_config(fields, "here")


def test_a_head_for_another_task_is_refused() -> None:
    with pytest.raises(ModelError, match="LlamaForSequenceClassification"):
        decoder_config({**BASE, "architectures": ["LlamaForSequenceClassification"]}, "here")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "6"}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_act": "maxout"}, "hidden_act"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma2", "layer_types": ["chunked_attention"] * 6}, "layer_types"),
        ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_faulty_fields_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=f"'{named}'"):
        decoder_config({**BASE, **fields}, "here")


def test_old_and_new_rope_spellings_agree() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = rope(rope_theta=5e5, rope_scaling={"type": "llama3", **scaling})
    new = rope(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert old == new and old.kind == "llama3" and old.theta == 5e5 and old.trained_len == 64
    assert rope(rope_theta=1e6) == rope(rope_parameters={"rope_theta": 1e6, "rope_type": "default"})
    assert rope(partial_rotary_factor=0.5).dim == rope(rope_parameters={"partial_rotary_factor": 0.5}).dim == 8


def test_gemma3_gives_sliding_layers_their_own_base() -> None:
    fields = {**BASE, "model_type": "gemma3_text", "sliding_window": 32, "sliding_window_pattern": 3}
    scaled = {"rope_type": "linear", "factor": 8.0}
    old = decoder_config({**fields, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaled}, "here")
    new = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6, **scaled}}
    assert old.layers == decoder_config({**fields, "rope_parameters": new}, "here").layers
    assert [layer.group for layer in old.layers] == ["sliding", "sliding", "full"] * 2
    assert {(layer.group, layer.rope.theta, layer.rope.factor) for layer in old.layers if layer.rope} == {
        ("sliding", 1e4, 1.0),
        ("full", 1e6, 8.0),
    }
    assert old.window == 32 and old.max_len == 256


def test_defaults_that_files_leave_out() -> None:
    gemma = decoder_config({**BASE, "model_type": "gemma2"}, "here")
    assert (gemma.head_dim, gemma.final_softcap, gemma.attention_softcap, gemma.window) == (256, 30.0, 50.0, 4096)
    assert gemma.tied and gemma.norm_offset == 1.0 and gemma.scale == 1 / 16
    uncapped = decoder_config({**BASE, "model_type": "gemma2", "attn_logit_softcapping": None}, "here")
    assert uncapped.attention_softcap is None
    mistral = decoder_config({**BASE, "model_type": "mistral", "sliding_window": None}, "here")
    assert {layer.group for layer in mistral.layers} == {"full"} and mistral.window is None
    smol = decoder_config({**BASE, "model_type": "smollm3"}, "here")
    assert [layer.rope is None for layer in smol.layers] == [False, False, False, True, False, False]


def test_scaled_positions_extend_what_the_model_serves() -> None:
    def served(**scaling: Any) -> int:
        return decoder_config({**BASE, "rope_scaling": scaling}, "here").max_len

    assert served(rope_type="dynamic", factor=2.0) == 512
    assert served(rope_type="yarn", factor=4.0, original_max_position_embeddings=128) == 512
    assert served(rope_type="llama3", factor=8.0, original_max_position_embeddings=64) == 256
