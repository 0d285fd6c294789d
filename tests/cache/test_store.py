"""The KV store: shapes, bytes, copies of blocks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.store import KVStore

GROUPS = (
    BlockGroupSpec("full", (LayerKV(0, 2, 8, 4), LayerKV(2, 1, 16, 16))),
    BlockGroupSpec("sliding", (LayerKV(1, 2, 8, 8),), window=5),
)
BLOCKS = {"full": 6, "sliding": 3}


def make_store(dtype: torch.dtype = torch.float32) -> KVStore:
    return KVStore(GROUPS, BLOCKS, 4, dtype)


def test_each_layer_has_its_own_widths_and_its_groups_slots() -> None:
    store = make_store()
    assert store.keys(0).shape == (24, 2, 8)
    assert store.values(0).shape == (24, 2, 4)
    assert store.keys(1).shape == store.values(1).shape == (12, 2, 8)
    assert store.values(2).shape == (24, 1, 16)
    assert not any(bool(memory.any()) for name in BLOCKS for memory in store.tensors(name))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nbytes_is_bytes_per_token_times_slots(dtype: torch.dtype) -> None:
    expected = sum(group.bytes_per_token(dtype.itemsize) * BLOCKS[group.name] * 4 for group in GROUPS)
    assert make_store(dtype).nbytes == expected


def test_copy_block_copies_all_layers_of_the_group_and_nothing_else() -> None:
    store = make_store()
    for name in BLOCKS:
        for memory in store.tensors(name):
            memory.copy_(torch.randn(memory.shape, generator=torch.Generator().manual_seed(1)))
    before = {name: [memory.clone() for memory in store.tensors(name)] for name in BLOCKS}
    store.copy_block("full", 2, 5)
    for memory, old in zip(store.tensors("full"), before["full"], strict=True):
        assert torch.equal(memory[20:24], old[8:12])
        assert torch.equal(memory[:20], old[:20])
    assert all(torch.equal(a, b) for a, b in zip(store.tensors("sliding"), before["sliding"], strict=True))


def test_clear_blocks_removes_values_that_are_not_finite() -> None:
    store = make_store()
    for memory in store.tensors("full"):
        memory.fill_(float("nan"))
    store.clear_blocks("full", [0, 3])
    for memory in store.tensors("full"):
        assert not memory[:4].any() and not memory[12:16].any()
        assert bool(memory[4:12].isnan().all()) and bool(memory[16:].isnan().all())


def test_a_layer_number_used_twice_is_refused() -> None:
    twice = (GROUPS[0], BlockGroupSpec("other", (LayerKV(2, 1, 1, 1),)))
    with pytest.raises(ValueError, match="layer 2"):
        KVStore(twice, {"full": 2, "other": 2}, 4, torch.float32)


_RESIDENT = """
import torch
from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.store import KVStore

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
store = KVStore([BlockGroupSpec("full", (LayerKV(0, 4, 64, 64),))], {"full": 4096}, 16, torch.float32)
print(store.nbytes, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_resident_from_the_start() -> None:
    import paceline

    source = str(next(iter(paceline.__path__)) + "/..")
    done = subprocess.run(
        [sys.executable, "-c", _RESIDENT], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    nbytes, gained = map(int, done.stdout.split())
    assert nbytes == 4096 * 16 * 4 * 128 * 4
    assert gained == pytest.approx(nbytes, rel=0.05)


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        BlockGroupSpec("sliding", (), window=0)


@pytest.mark.parametrize(
    ("window", "span", "tokens", "blocks"),
    [
        (None, None, 33, 9),
        (None, 8, 33, 9),
        (6, None, 33, 9),
        (6, 1, 33, 1),
        (6, 8, 33, 3),
        (6, 9, 33, 3),
        (6, 10, 33, 4),
        (6, 8, 5, 2),
    ],
)
def test_blocks_a_row_holds_at_once(window: int | None, span: int | None, tokens: int, blocks: int) -> None:
    assert BlockGroupSpec("g", (), window=window).blocks_for(tokens, 4, span) == blocks
