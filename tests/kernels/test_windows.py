"""The window kernel against windows by tensor operations: proposals, lengths, and the whole forward batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch

from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.pool import BlockPool
from paceline.cache.tables import RowTables
from paceline.engine import device_windows
from paceline.engine.device_windows import RoundWindows, round_windows
from paceline.kernels import windows
from paceline.kernels.windows import Offer

ROWS, LONGEST, BLOCK, VOCABULARY = 8, 40, 4, 30
GROUPS = [BlockGroupSpec("full", (LayerKV(0, 1, 1, 1),)), BlockGroupSpec("other", (LayerKV(1, 1, 1, 1),))]
Make = Callable[[RowTables, Offer], RoundWindows]


def make_tables(seed: int) -> RowTables:
    """Rows at many lengths, some not live, some near their limit or their budget's end."""
    rnd = random.Random(seed)
    pools = {group.name: BlockPool(200, BLOCK) for group in GROUPS}
    tables = RowTables(ROWS, LONGEST, GROUPS, pools, None)
    for _ in range(ROWS):
        row = tables.acquire_index()
        assert row is not None
        tables.reserve(row, rnd.choice([4, 12, LONGEST]))
        tables.length[row] = rnd.choice([0, 3, 11, LONGEST - 3, LONGEST - 1])
        tables.limit[row] = rnd.choice([12, LONGEST])
        tables.remaining[row] = rnd.randint(1, 6)
        tables.live[row], tables.pending[row] = rnd.random() < 0.8, rnd.randrange(VOCABULARY)
    return tables


def make_offer(seed: int, drafts: int, given: int) -> Offer:
    torch.manual_seed(seed)
    count = 5
    index = torch.randperm(ROWS)[:count]
    lengths = torch.randint(0, given + 1, (count,)) * (torch.rand(count) < 0.6)
    offer = Offer(
        index,
        max(drafts, given),
        VOCABULARY,
        torch.randint(0, drafts + 1, (count,)),
        torch.randint(0, VOCABULARY, (count, given)),
        lengths,
    )
    if not drafts:
        return offer
    drafted = torch.randint(0, VOCABULARY, (count, drafts), dtype=torch.int32)
    drafted[torch.rand(count, drafts) < 0.1] = VOCABULARY + 3
    return replace(offer, drafted=drafted, drafted_lengths=torch.randint(0, drafts + 1, (count,), dtype=torch.int32))


def differences(make: Make, seed: int, drafts: int, given: int) -> list[str]:
    tables, offer = make_tables(seed), make_offer(seed, drafts, given)
    expected, got = round_windows(tables, offer), make(tables, offer)
    found = [name for name in ("proposals", "lengths") if not torch.equal(getattr(got, name), getattr(expected, name))]
    for name in ("tokens", "positions", "indices"):
        if not torch.equal(getattr(got.batch, name), getattr(expected.batch, name)):
            found.append(name)
    for group in GROUPS:
        if not torch.equal(got.batch.slots[group.name], expected.batch.slots[group.name]):
            found.append(f"slots of {group.name}")
        table, known = got.batch.block_tables[group.name], expected.batch.block_tables[group.name]
        # the kernel passes whole tables on, the tensor form as much as the rows reach
        if not torch.equal(table[:, : known.shape[1]], known[:, : table.shape[1]]):
            found.append(f"blocks of {group.name}")
    return found


@pytest.mark.parametrize("given", [0, 1, 5])
@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_windows_are_those_of_the_tensor_form(seed: int, drafts: int, given: int) -> None:
    assert differences(device_windows._by_kernel, seed, drafts, given) == []


def test_tables_wider_than_a_tile_are_passed_on_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_SPAN", 4)
    assert differences(device_windows._by_kernel, 0, 4, 0) == []


def _with(**changes: Callable[[Offer, RowTables], object]) -> Make:
    def make(tables: RowTables, offer: Offer) -> RoundWindows:
        changed = {name: change(offer, tables) for name, change in changes.items()}
        return device_windows._by_kernel(tables, replace(offer, **changed))  # type: ignore[arg-type]

    return make


def _all_live(tables: RowTables, offer: Offer) -> RoundWindows:
    tables.live.fill_(True)
    return device_windows._by_kernel(tables, offer)


BROKEN: dict[str, Make] = {
    "rows are mixed up": _with(index=lambda offer, _: offer.index.flip(0)),
    "ids outside the vocabulary are taken": _with(vocabulary=lambda offer, _: VOCABULARY + 9),
    "depths are not looked at": _with(depths=lambda offer, _: torch.full_like(offer.depths, 4)),
    "given lengths are not looked at": _with(given_lengths=lambda offer, _: torch.full_like(offer.given_lengths, 5)),
    "rows that are not live write": _all_live,
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_windows_are_noticed(name: str) -> None:
    assert any(differences(BROKEN[name], seed, 4, 5) for seed in range(4))
