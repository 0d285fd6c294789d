"""The binding: loading, refusals, memory, sliding groups, sequences past the trained length, faulty rows."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch

from paceline.cache.store import KVStore
from paceline.core.errors import ConfigError, ModelError
from paceline.models.binding import TargetBinding, load_target

from . import tiny

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def text(length: int) -> list[int]:
    return torch.randint(3, 96, (length,), generator=torch.Generator().manual_seed(9)).tolist()


@torch.inference_mode()
def expected(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def test_capabilities() -> None:
    target = tiny.target(tiny.reference("gemma3_text"), "float64")
    assert (target.vocab_size, target.hidden_size, target.num_layers) == (96, 48, 4)
    assert target.kv_dtype == torch.float64 and target.records == 2 and not target.tail_split
    assert [(group.name, group.window) for group in target.kv_groups] == [("sliding", 24), ("full", None)]
    assert sorted(layer.layer for group in target.kv_groups for layer in group.layers) == [0, 1, 2, 3]
    assert target.exactness in ("bitwise", "ties") and target.row_invariant == (target.exactness == "bitwise")


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3_text", "qwen3-sliding"])
def test_a_sliding_group_may_lose_what_lies_behind_its_window(name: str) -> None:
    model = tiny.reference(name)
    target = tiny.target(model)
    ids, rows = text(160), tiny.Rows(target, 2)
    sliding = next(group for group in target.kv_groups if group.window is not None)
    hidden = []
    for start in range(0, 160, 8):
        hidden.append(rows.run({1: ids[start : start + 8]}).hidden)
        rows.free_behind(sliding, sliding.window or 0)
        rows.store.keys(sliding.layers[0].layer)[:16] = 1e3
    torch.testing.assert_close(target.logits(torch.cat(hidden)), expected(model, ids), **EXACT)


def test_freed_blocks_change_no_bit_of_the_fast_path() -> None:
    target = tiny.target(tiny.reference("mistral", max_position_embeddings=1024), "float32")
    ids = text(400)
    kept, freed = (tiny.Rows(target, 1, 512, scattered=False) for _ in range(2))
    for rows in (kept, freed):
        rows.run({0: ids[:390]})
    freed.free_behind(target.kv_groups[0], 40)
    one = kept.run({0: ids[390:]}).hidden
    assert torch.equal(freed.run({0: ids[390:]}).hidden, one)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the cache argument is being renamed
def test_dynamic_rope_past_the_trained_length_equals_token_by_token_decoding() -> None:
    model = tiny.reference("llama-dynamic-rope", max_position_embeddings=32)
    target = tiny.target(model)
    ids = text(60)
    cache, logits = None, []
    with torch.inference_mode():
        for token in ids:
            out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits[0, -1])
    got = target.logits(tiny.Rows(target, 1, 64).run({0: ids}).hidden)
    torch.testing.assert_close(got, torch.stack(logits), rtol=1e-4, atol=1e-4)


def test_longrope_with_a_long_prompt() -> None:
    switches = {"original_max_position_embeddings": 32, "max_position_embeddings": 128}
    model = tiny.reference("phi3-partial-longrope", **switches)
    ids = text(50)
    long = tiny.target(model, max_model_len=128)
    torch.testing.assert_close(long.logits(tiny.Rows(long, 1, 128).run({0: ids}).hidden), expected(model, ids), **EXACT)
    short = tiny.target(model, max_model_len=32)
    got = short.logits(tiny.Rows(short, 1, 32).run({0: ids[:30]}).hidden)
    torch.testing.assert_close(got, expected(model, ids[:30]), **EXACT)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "up_proj.weight' is missing"),
        (lambda t: t.pop("model.embed_tokens.weight"), "embed_tokens.weight' is missing"),
        (lambda t: t.update({"model.norm.weight": torch.ones(7)}), r"shape \(7,\).*\(48,\)"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}), "no place.*q_proj.bias"),
        (lambda t: t.update({"lm_head.weight": torch.ones(96, 48, dtype=torch.int8)}), "quantised"),
        (lambda t: t["model.embed_tokens.weight"][0].fill_(math.nan), "not finite"),
    ],
)
def test_damaged_checkpoints_are_refused(spoil: Any, message: str) -> None:
    found = tiny.checkpoint(tiny.reference("llama"))
    spoil(found.tensors)
    with pytest.raises(ModelError, match=message):
        load_target(found, "float64", "cpu", None)


def test_a_length_the_model_does_not_serve_is_refused() -> None:
    found = tiny.checkpoint(tiny.reference("llama"))
    with pytest.raises(ConfigError, match="max_model_len: is 513"):
        load_target(found, "float64", "cpu", 513)


def test_a_window_that_never_closes_is_no_window() -> None:
    found = tiny.checkpoint(tiny.reference("gemma3_text"))
    groups = {length: load_target(found, "float64", "cpu", length).kv_groups for length in (24, 25)}
    assert [group.name for group in groups[24]] == ["full"] and len(groups[24][0].layers) == 4
    assert [group.name for group in groups[25]] == ["sliding", "full"]


def test_window_positions_past_the_end_are_harmless() -> None:
    target = tiny.target(tiny.reference("llama"), max_model_len=32)
    ids, rows = text(40), tiny.Rows(target, 1, 64)
    rows.run({0: ids[:30]})
    past = rows.run({0: ids[30:40]}).hidden[:2]
    alone = tiny.Rows(target, 1, 64)
    alone.run({0: ids[:30]})
    torch.testing.assert_close(alone.run({0: ids[30:32]}).hidden, past, **EXACT)


def test_no_rows_have_no_logits() -> None:
    for dtype in ("float64", "float32", "bfloat16", "int8"):
        target = tiny.target(tiny.reference("llama"), dtype)
        assert target.logits(torch.zeros(0, 48, dtype=target.kv_dtype)).shape == (0, 96)


def test_body_only_checkpoints_and_old_buffers_load() -> None:
    model = tiny.reference("llama-tied")
    found = tiny.checkpoint(model)
    found.tensors = {name.removeprefix("model."): tensor for name, tensor in found.tensors.items()}
    found.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    target = load_target(found, "float64", "cpu", None)
    ids = text(5)
    torch.testing.assert_close(target.logits(tiny.Rows(target, 1).run({0: ids}).hidden), expected(model, ids), **EXACT)


def test_a_store_of_another_format_is_refused() -> None:
    target = tiny.target(tiny.reference("llama"))
    with pytest.raises(ValueError, match="float32"):
        target.attach(KVStore(target.kv_groups, {"full": 4}, 16, torch.float32, "cpu"))


def held_bytes(target: TargetBinding) -> int:
    """Bytes of every tensor reachable from the binding, each storage once."""
    seen: dict[int, int] = {}
    stack: list[Any] = [target.__dict__]
    visited = set()
    while stack:
        thing = stack.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, torch.Tensor):
            key = thing.data_ptr() if thing.layout == torch.strided else id(thing)
            seen[key] = thing.numel() * thing.element_size()
        elif isinstance(thing, dict):
            stack.extend(thing.values())
        elif isinstance(thing, list | tuple):
            stack.extend(thing)
        elif hasattr(thing, "__dict__") and type(thing).__module__.startswith("paceline"):
            stack.append(vars(thing))
    return sum(seen.values())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3", "phi3"])
def test_weight_bytes_count_what_is_held(name: str, dtype: str) -> None:
    target = tiny.target(tiny.reference(name), dtype)
    gc.collect()
    assert target.weight_bytes == held_bytes(target)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_short_formats_stay_close_to_float64(dtype: str) -> None:
    model = tiny.reference("qwen3")
    ids = text(150)
    exact = expected(model, ids)
    target = tiny.target(model, dtype)
    rows = tiny.Rows(target, 2)
    first = rows.run({0: ids[:100], 1: ids[:3]}).hidden[:100]
    got = torch.cat([first, rows.run({1: ids[:1], 0: ids[100:]}).hidden[1:]])
    error = (target.logits(got).double() - exact).norm() / exact.norm()
    assert error < 0.05


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    """Row 1 overflows; then row 0, whose last block is one that row 1 wrote, must read as if it had not."""
    target = tiny.target(tiny.reference("llama"), "float32")
    rows = tiny.Rows(target, 2, scattered=False)
    ids = text(20)
    clean = rows.run({0: ids}).hidden
    again = tiny.Rows(target, 2, scattered=False)
    again.tables = {name: table[[1, 1]] for name, table in again.tables.items()}
    with torch.inference_mode():
        embedding = target._graph.embedding
        kept = embedding[95].clone()
        embedding[95] = math.inf
        bad = again.run({1: [95] * 30}).hidden
        embedding[95] = kept
    assert not torch.isfinite(bad).all()
    assert torch.equal(again.run({0: ids}).hidden, clean)
