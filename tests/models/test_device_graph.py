"""The fused device graph against the plain one, family by family; on a GPU also what it promises about bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from paceline.cache.store import KVStore
from paceline.core.batch import ForwardBatch
from paceline.kernels.backend import TORCH_DTYPES
from paceline.kernels.linear import Linear, PlainLinear
from paceline.models import assembly, fused
from paceline.models.binding import kv_groups
from paceline.models.config import DecoderConfig, decoder_config
from paceline.models.device_graph import DeviceGraph
from paceline.models.graph import DecoderGraph
from paceline.models.random import RandomWeights, random_target

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = "bfloat16" if GPU else "float32"
TOLERANCE = 4e-2 if GPU else 1e-5
BLOCK, LENGTH = 16, 256
on_gpu = pytest.mark.skipif(not GPU, reason="bits depend on the matrix units, which the interpreter does not have")

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": LENGTH,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"head_dim": 32},
    "qwen3": {"head_dim": 64},
    "mistral": {"sliding_window": 40},
    "smollm3": {"no_rope_layers": [1, 0], "tie_word_embeddings": False},
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
}


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, dtype: str) -> Linear:
    """What ``make_linear`` gives on a GPU."""
    kind = TORCH_DTYPES[dtype]
    return PlainLinear(weight.to(kind), None if bias is None else bias.to(kind))


@pytest.fixture
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[DecoderGraph, DeviceGraph]:
    """A plain and a fused graph of one family, each with a KV memory of its own."""
    monkeypatch.setattr(assembly, "make_linear", plain_linear)
    family = request.param
    hf_config = SIZES | {"model_type": family, "architectures": [f"{family}ForCausalLM"]} | FAMILIES[family]
    config = decoder_config(hf_config, family).for_length(LENGTH)
    weights = RandomWeights(hf_config, DEVICE, torch.float32, seed=5)

    def build() -> DecoderGraph:
        return assembly.Assembler(config, weights, DTYPE, DEVICE, family).graph(LENGTH)

    with torch.inference_mode():
        plain, packed = build(), DeviceGraph(build(), LENGTH)
    for graph in (plain, packed):
        _attach(graph, config)
    return plain, packed


def _attach(graph: DecoderGraph | DeviceGraph, config: DecoderConfig) -> None:
    groups = kv_groups(config)
    store = KVStore(
        groups, {group.name: 1 + 2 * LENGTH // BLOCK for group in groups}, BLOCK, TORCH_DTYPES[DTYPE], DEVICE
    )
    for number in range(config.num_layers):
        graph.attach(number, store.keys(number), store.values(number))


def batch(config: DecoderConfig, starts: Sequence[int], lens: Sequence[int], width: int | None) -> ForwardBatch:
    per_row = LENGTH // BLOCK
    table = 1 + torch.arange(len(lens) * per_row, device=DEVICE).view(len(lens), per_row)
    positions = torch.cat([torch.arange(at, at + n, device=DEVICE) for at, n in zip(starts, lens, strict=True)])
    owner = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens)).to(DEVICE)
    slots = table[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    tokens = (positions * 7 + owner * 3) % config.vocab_size
    names = {layer.group for layer in config.layers}
    return ForwardBatch(
        tokens,
        positions,
        torch.arange(len(lens), device=DEVICE),
        lens,
        list(starts),
        dict.fromkeys(names, slots),
        dict.fromkeys(names, table),
        width,
    )


@pytest.mark.parametrize("graphs", FAMILIES, indirect=True)
@torch.inference_mode()
def test_a_fused_graph_computes_what_the_plain_one_does(graphs: tuple[DecoderGraph, DeviceGraph]) -> None:
    plain, packed = graphs
    config = packed.config
    steps: list[tuple[list[int], list[int], int | None]] = [
        ([0, 0], [70, 3], None),
        ([70, 3], [2, 2], 2),
        ([72, 5], [1, 1], None),
        ([73, 6], [34, 34], 34),
    ]
    for starts, lens, width in steps:
        expected = plain.forward(batch(config, starts, lens, None), (1, -1, 1), BLOCK)
        found = packed.forward(batch(config, starts, lens, width), (1, -1, 1), BLOCK)
        assert expected.context is not None and found.context is not None
        pairs = [
            (found.hidden, expected.hidden),
            (found.context, expected.context),
            (packed.logits(found.hidden[-3:]), plain.logits(expected.hidden[-3:])),
        ]
        for ours, theirs in pairs:
            assert ours.dtype == theirs.dtype
            assert (ours - theirs).float().norm() / theirs.float().norm() < TOLERANCE


@pytest.mark.parametrize("graphs", ["qwen3"], indirect=True)
@torch.inference_mode()
def test_the_weights_are_held_once(graphs: tuple[DecoderGraph, DeviceGraph]) -> None:
    _, packed = graphs
    layers = sum(w.nbytes for one in packed.layers for w in (one.qkv, one.out, one.gate_up, one.down))
    tables = sum(table.nbytes for table in packed.angles.values())
    assert layers < packed.nbytes <= layers + 2 * packed.embedding.nbytes + tables + (4 << 10)


@pytest.mark.parametrize("graphs", ["llama"], indirect=True)
def test_a_graph_without_memory_says_so(graphs: tuple[DecoderGraph, DeviceGraph]) -> None:
    _, packed = graphs
    packed.layers[0].paged = None
    with pytest.raises(RuntimeError, match="no KV store"), torch.inference_mode():
        packed.forward(batch(packed.config, [0], [1], 1), (), BLOCK)


def test_what_the_fused_graph_does_not_have_is_named() -> None:
    def reason(**fields: Any) -> str:
        config = decoder_config(SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | fields, "test")
        return fused.unfused_reason(config) or ""

    assert reason() == ""
    assert "the activation gelu" in reason(hidden_act="gelu")
    assert "norms behind its blocks" in reason(model_type="olmo2")
    assert "soft caps" in reason(model_type="gemma2")
    assert "heads of 24 features" in reason(head_dim=24)
    assert "partly rotated heads" in reason(model_type="phi3", partial_rotary_factor=0.5)
    assert "no multiple of 16" in reason(intermediate_size=72)


@on_gpu
@torch.inference_mode()
def test_windows_batches_and_cuts_of_a_prompt_give_the_same_bits() -> None:
    for shape in ("tiny", "qwen3-0.6b"):
        target = random_target(shape, max_model_len=2048)
        assert isinstance(target._graph, DeviceGraph)
        assert target.exactness == "bitwise" and target.row_invariant and target.chunk_invariant


@on_gpu
@torch.inference_mode()
def test_a_captured_forward_follows_its_inputs() -> None:
    target = random_target("tiny", max_model_len=LENGTH)
    _attach(target._graph, target.config)
    target._block_size = BLOCK
    config = target.config
    target.forward(batch(config, [0], [60], None))
    static = batch(config, [200], [3], 3)  # the bound of the context is larger than what is replayed
    run = lambda: target.logits(target.forward(static, (0,)).hidden)  # noqa: E731
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for start in (60, 61, 50):
        actual = batch(config, [start], [3], 3)
        expected = target.logits(target.forward(actual).hidden).clone()
        for name in ("tokens", "positions"):
            getattr(static, name).copy_(getattr(actual, name))
        static.slots["full"].copy_(actual.slots["full"])
        graph.replay()
        assert torch.equal(out, expected)
