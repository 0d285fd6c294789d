"""Row columns: what is written of a request, indices for life, history."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.cache.kit import SeparateTables

from paceline.cache.groups import BlockGroupSpec
from paceline.cache.pool import BlockPool
from paceline.cache.tables import RowTables
from paceline.core.errors import IntegrityError
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row

CONTEXT = 32


@pytest.fixture(params=[RowTables, SeparateTables], ids=["shared memory", "separate memory"])
def tables(request: pytest.FixtureRequest) -> RowTables:
    kind: type[RowTables] = request.param
    return kind(3, CONTEXT, [BlockGroupSpec("full", ())], {"full": BlockPool(10, 4)}, None)


def make_row(index: int, **changes: Any) -> Row:
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, seed=1)
    request = Request("r", (5, 6, 7), params, max_tokens=9, eos_ids=(2, 11), seed=7, draft_cap=4)
    return Row(dataclasses.replace(request, **changes), index, [5, 6, 7])


def column(tables: RowTables, name: str, index: int) -> int | float | bool:
    return getattr(tables, name)[index].item()


def test_write_row_writes_constants_and_mirror(tables: RowTables) -> None:
    row = make_row(tables.acquire_index() or 0)
    tables.write_row(row)
    assert column(tables, "temperature", 0) == pytest.approx(0.7)
    assert column(tables, "top_p", 0) == pytest.approx(0.9)
    assert column(tables, "min_p", 0) == pytest.approx(0.05)
    assert (column(tables, "top_k", 0), column(tables, "draft_cap", 0), column(tables, "seed", 0)) == (40, 4, 7)
    assert tables.eos_ids[0].tolist() == [2, 11, -1, -1, -1, -1, -1, -1]
    assert tables.history[0, :3].tolist() == [5, 6, 7]
    assert not column(tables, "live", 0) and not column(tables, "bad", 0)
    row.tokens += [8, 9]
    row.pending, row.length, row.step, row.generated = 9, 4, 2, 2
    tables.write_mirror(row)
    mirror = [column(tables, name, 0) for name in ("pending", "length", "step", "remaining", "live")]
    assert mirror == [9, 4, 2, 7, True]
    assert tables.history[0, 4].item() == row.pending


def test_dtypes_are_those_of_the_interface(tables: RowTables) -> None:
    for name in ("pending", "length", "draft_length", "step", "remaining", "seed", "top_k", "draft_cap", "eos_ids"):
        assert getattr(tables, name).dtype == torch.int64
    for name in ("temperature", "top_p", "min_p"):
        assert getattr(tables, name).dtype == torch.float32
    assert tables.live.dtype == tables.bad.dtype == torch.bool
    assert tables.history.dtype == torch.int32
    assert tables.history.shape == (3, CONTEXT + 1)


@pytest.mark.parametrize(("seed", "stored"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_seeds_are_stored_as_twos_complement(tables: RowTables, seed: int, stored: int) -> None:
    tables.write_row(make_row(tables.acquire_index() or 0, seed=seed))
    assert column(tables, "seed", 0) == stored


@pytest.mark.parametrize(("top_k", "stored"), [(-1, 0), (0, 0), (1, 1), (2**70, 2**31 - 1)])
def test_top_k_off_is_zero_and_never_overflows(tables: RowTables, top_k: int, stored: int) -> None:
    params = SamplingParams(top_k=top_k, seed=1)
    tables.write_row(make_row(tables.acquire_index() or 0, params=params))
    assert column(tables, "top_k", 0) == stored


def test_the_first_eight_ids_that_a_vocabulary_can_hold_are_on_the_device(tables: RowTables) -> None:
    tables.write_row(make_row(tables.acquire_index() or 0, eos_ids=(2**40, *range(20, 32))))
    assert tables.eos_ids[0].tolist() == list(range(20, 28))


@pytest.mark.parametrize(
    ("pending", "stopped", "generated", "live"),
    [(4, False, 0, True), (-1, False, 0, False), (4, True, 0, False), (4, False, 9, False)],
)
def test_a_row_is_live_while_it_can_decode(
    tables: RowTables, pending: int, stopped: bool, generated: int, live: bool
) -> None:
    row = make_row(tables.acquire_index() or 0)
    row.pending, row.stopped, row.generated = pending, stopped, generated
    tables.write_row(row)
    assert column(tables, "live", 0) == live


def test_indices_are_handed_out_lowest_first_and_never_twice(tables: RowTables) -> None:
    assert [tables.acquire_index() for _ in range(4)] == [0, 1, 2, None]
    tables.release_index(2)
    tables.release_index(0)
    assert tables.free_indices == 2
    assert [tables.acquire_index(), tables.acquire_index(), tables.acquire_index()] == [0, 2, None]


@pytest.mark.parametrize("index", [1, -1, 3])
def test_an_index_that_is_not_in_use_is_refused(tables: RowTables, index: int) -> None:
    tables.acquire_index()
    for call in (tables.release_index, lambda i: tables.write_row(make_row(i)), tables.release):
        with pytest.raises(IntegrityError, match="not in use"):
            call(index)


def test_a_new_row_sees_nothing_of_the_last_one(tables: RowTables) -> None:
    index = tables.acquire_index() or 0
    row = make_row(index)
    row.pending, row.length = 7, 2
    tables.write_row(row)
    tables.draft_length[index] = 2
    tables.bad[index] = True
    tables.release_index(index)
    assert not column(tables, "live", index)
    assert tables.acquire_index() == index
    assert [column(tables, n, index) for n in ("pending", "length", "draft_length", "bad", "live")] == [
        -1, 0, 0, False, False,
    ]  # fmt: skip
    assert tables.eos_ids[index].tolist() == [-1] * 8
    tables.write_row(Row(row.request, index, [1, 2]))
    assert tables.history[index, :2].tolist() == [1, 2]


def test_history_grows_by_what_it_lacks(tables: RowTables) -> None:
    index = tables.acquire_index() or 0
    row = make_row(index)
    tables.write_row(row)
    tables.append_history([index], [[8, 9]])
    row.tokens += [8, 9, 10]
    tables.write_mirror(row)
    assert tables.history[index, :6].tolist() == [5, 6, 7, 8, 9, 10]
    with pytest.raises(IntegrityError, match="context holds 32"):
        tables.append_history([index], [[1] * CONTEXT])


def test_draws_are_appended_behind_the_pending_token_without_touching_other_rows(tables: RowTables) -> None:
    lengths = [2, CONTEXT - 3, 0]
    for index, length in enumerate(lengths):
        assert tables.acquire_index() == index
        tables.length[index] = length
        tables.history[index] = torch.arange(CONTEXT + 1) + 100
    draws = torch.tensor([[1, 2, 3], [4, 5, 6]])
    tables.append_draws(torch.tensor([0, 1]), draws, torch.tensor([2, 3]))
    expected = torch.arange(CONTEXT) + 100
    assert tables.history[2, :CONTEXT].tolist() == expected.tolist()
    first, second = expected.clone(), expected.clone()
    first[3:5] = torch.tensor([1, 2])
    second[CONTEXT - 2 :] = torch.tensor([4, 5])
    assert tables.history[0, :CONTEXT].tolist() == first.tolist()
    assert tables.history[1, :CONTEXT].tolist() == second.tolist()


def test_the_padding_row_is_nobodys(tables: RowTables) -> None:
    padding = tables.take_padding()
    assert padding == 2
    assert tables.free_indices == 2
    assert (column(tables, "pending", padding), column(tables, "live", padding)) == (0, False)
    assert [tables.acquire_index(), tables.acquire_index(), tables.acquire_index()] == [0, 1, None]
    tables.check_integrity()
    with pytest.raises(IntegrityError, match="no index is left"):
        tables.take_padding()


def test_a_batch_filled_up_with_the_padding_row_changes_nothing(tables: RowTables) -> None:
    """Whatever a round does with it: its writes go to scratch, its columns stay."""
    padding = tables.take_padding()
    index = torch.full((3,), padding)
    before = {name: getattr(tables, name).clone() for name in ("pending", "length", "step", "remaining", "live")}
    batch = tables.device_batch(index, torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
    assert set((batch.slots["full"] // tables.block_size).tolist()) == {0}
    tables.append_draws(index, torch.full((3, 4), 9), torch.zeros(3, dtype=torch.int64))
    assert all(torch.equal(getattr(tables, name), value) for name, value in before.items())
    assert int(tables.history[:, :CONTEXT].sum()) == 0


def test_refresh_brings_every_table_up_to_date(tables: RowTables) -> None:
    index = tables.acquire_index()
    assert index == 0
    tables.reserve(index, 9)
    tables.refresh()
    assert tables._tables["full"]._device[0, :3].tolist() == tables.blocks(0, "full")
