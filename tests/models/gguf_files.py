"""Writes small GGUF files byte by byte, so that tests can damage any field of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

F32, Q4_1, Q8_0 = 0, 3, 8


@dataclass
class Stored:
    """One tensor as stored: ``shape`` row-major, ``raw`` its bytes. ``offset`` overrides the place it is listed at."""

    shape: tuple[int, ...]
    kind: int
    raw: bytes
    offset: int | None = None


@dataclass
class GGUFLayout:
    """What goes into a file. ``counts`` overrides the header's (tensor, metadata) counts."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Stored] = field(default_factory=dict)
    version: int = 3
    counts: tuple[int, int] | None = None

    def write(self, path: Path) -> Path:
        path.write_bytes(self.encode())
        return path

    def encode(self) -> bytes:
        tensor_count, metadata_count = self.counts or (len(self.tensors), len(self.metadata))
        header = b"GGUF" + struct.pack("<IQQ", self.version, tensor_count, metadata_count)
        header += b"".join(_string(key) + _value(value) for key, value in self.metadata.items())
        data, alignment = b"", self.metadata.get("general.alignment", 32)
        for name, tensor in self.tensors.items():
            offset = len(data) if tensor.offset is None else tensor.offset
            dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
            header += _string(name) + dims + struct.pack("<IQ", tensor.kind, offset)
            data += _padded(tensor.raw, alignment)
        return _padded(header, alignment) + data


def floats(values: np.ndarray) -> Stored:
    """A tensor stored as float32."""
    return Stored(values.shape, F32, np.ascontiguousarray(values, dtype="<f4").tobytes())


def _padded(raw: bytes, alignment: int) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    kind, raw = _typed(value)
    return struct.pack("<I", kind) + raw


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    items = [_typed(item) for item in value]
    kind = items[0][0] if items else 4
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(raw for _, raw in items)


def tiny_tokenizer(pre: str = "smollm") -> dict[str, Any]:
    """Metadata of a byte-level BPE tokenizer with three control tokens, all bytes and two merges."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "12", "ĊĊ"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["1 2", "Ċ Ċ"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The reordering of q and k rows that llama files carry: halves of each head become interleaved pairs."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def model_metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata for a configuration in Hugging Face terms."""
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": 100000.0,
    }
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}


STORED_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_name(name: str) -> str:
    """The name that GGUF files give to a tensor of a Hugging Face checkpoint."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        number, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{number}.{STORED_NAMES[part]}.{suffix}"
    return f"{STORED_NAMES[stem]}.{suffix}"
