"""The toy target: its cached path is its plain function, and any wrong cell changes what follows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.testing.toy import ToyTarget


def parts() -> tuple[ToyTarget, RowTables, KVStore]:
    target = ToyTarget()
    store = KVStore(target.kv_groups, {"full": 12}, 16, torch.float64)
    target.attach(store)
    return target, RowTables(3, 64, target.kv_groups, {"full": BlockPool(12, 16)}, store), store


tokens_lists = st.lists(st.integers(0, 63), min_size=1, max_size=40)


@given(tokens_lists, st.lists(st.integers(1, 8), min_size=40, max_size=40))
def test_logits_through_the_cache_are_those_of_the_text(tokens: list[int], cuts: list[int]) -> None:
    target, tables, _ = parts()
    index = tables.acquire_index()
    assert index is not None
    tables.reserve(index, len(tokens))
    place, rows = 0, []
    for cut in cuts:
        chunk = tokens[place : place + cut]
        if chunk:
            hidden = target.forward(tables.forward_batch([index], [chunk], [place], [64])).hidden
            rows.append(target.logits(hidden))
        place += cut
    got = torch.cat(rows).numpy()
    assert got.shape == (len(tokens), 64)
    assert all(np.array_equal(got[n], target.next_logits(tokens[: n + 1])) for n in range(len(tokens)))


def test_a_changed_cell_changes_all_that_follows() -> None:
    target, tables, store = parts()
    index = tables.acquire_index()
    assert index is not None
    tables.reserve(index, 20)
    tokens = list(range(10))
    target.forward(tables.forward_batch([index], [tokens], [0], [64]))
    clean = target.forward(tables.forward_batch([index], [[50]], [10], [64])).hidden
    for column in (0, 1):  # token, position
        slot = tables.blocks(index, "full")[0] * 16 + 4
        store.keys(0)[slot, 0, column] += 1
        assert not torch.equal(target.forward(tables.forward_batch([index], [[50]], [10], [64])).hidden, clean)
        store.keys(0)[slot, 0, column] -= 1


def test_taps_repeat_the_hidden_states_and_poison_is_not_finite() -> None:
    target, tables, _ = parts()
    index = tables.acquire_index()
    assert index is not None
    tables.reserve(index, 4)
    result = target.forward(tables.forward_batch([index], [[7, 8, 9]], [0], [64]), (0, 0))
    assert result.context is not None and result.context.shape == (3, 10)
    target.poison.add((7, 1))
    finite = torch.isfinite(target.logits(result.hidden)).all(dim=1)
    assert finite.tolist() == [True, False, True]
