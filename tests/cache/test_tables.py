"""Block tables of rows: what each operation promises, one at a time. Random programs are in ``test_programs``."""

from __future__ import annotations

import pytest
import torch
from tests.cache.kit import BLOCK, CONTEXT, DEPTH, GROUPS, POOL_BLOCKS, ROWS, WINDOW

from paceline.cache.groups import BlockGroupSpec
from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.errors import IntegrityError, OutOfBlocks

NAMES = [group.name for group in GROUPS]


@pytest.fixture
def store() -> KVStore:
    return KVStore(GROUPS, POOL_BLOCKS, BLOCK, torch.float64)


@pytest.fixture
def tables(store: KVStore) -> RowTables:
    pools = {name: BlockPool(count, BLOCK) for name, count in POOL_BLOCKS.items()}
    return RowTables(ROWS, CONTEXT, GROUPS, pools, store)


def admit(tables: RowTables, length: int) -> int:
    index = tables.acquire_index()
    assert index is not None
    tables.reserve(index, length)
    return index


def used(tables: RowTables) -> dict[str, int]:
    return {name: pool.num_blocks - 1 - pool.free_blocks for name, pool in tables.pools.items()}


@pytest.mark.parametrize(("upto", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (CONTEXT, 10)])
def test_reserve_covers_all_positions_below_upto_in_every_group(tables: RowTables, upto: int, blocks: int) -> None:
    index = admit(tables, upto)
    assert [len(tables.blocks(index, name)) for name in NAMES] == [blocks] * 3
    assert tables.covered(index) == blocks * BLOCK
    tables.reserve(index, max(0, upto - 3))
    assert used(tables) == dict.fromkeys(NAMES, blocks)


def test_reserve_takes_nothing_when_one_group_is_out_of_blocks(tables: RowTables) -> None:
    index = admit(tables, 6)
    tables.pools["draft"].allocate(tables.pools["draft"].free_blocks)
    before = {name: tables.blocks(index, name) for name in NAMES}
    free = {name: pool.free_blocks for name, pool in tables.pools.items()}
    with pytest.raises(OutOfBlocks):
        tables.reserve(index, 30)
    assert {name: tables.blocks(index, name) for name in NAMES} == before
    assert {name: pool.free_blocks for name, pool in tables.pools.items()} == free


def test_reserve_past_the_context_is_refused_by_name(tables: RowTables) -> None:
    with pytest.raises(IntegrityError, match=f"context holds {CONTEXT}"):
        admit(tables, CONTEXT + 1)


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3), (99, 3)])
def test_trim_keeps_exactly_the_blocks_that_length_needs(tables: RowTables, length: int, kept: int) -> None:
    index = admit(tables, 12)
    before = tables.blocks(index, "full")
    tables.trim(index, length)
    assert tables.blocks(index, "full") == before[:kept]
    assert tables.block_table("full")[index, kept:].eq(0).all()
    tables.check_integrity()


def test_a_trimmed_row_grows_back_into_the_same_blocks(tables: RowTables) -> None:
    index = admit(tables, 12)
    before = tables.blocks(index, "full")
    for accepted in range(DEPTH + 1):
        tables.reserve(index, 12 + DEPTH)
        tables.trim(index, 8 + accepted)
    tables.reserve(index, 12)
    assert tables.blocks(index, "full") == before


def test_sliding_groups_alone_free_what_lies_behind(tables: RowTables) -> None:
    index = admit(tables, 24)
    whole = tables.blocks(index, "sliding")
    tables.free_behind(index, 21, WINDOW + DEPTH)
    assert tables.blocks(index, "sliding") == [0, 0, *whole[2:]]
    assert [tables.freed_behind(index, name) for name in NAMES] == [0, 2, 0]
    assert used(tables) == {"full": 6, "sliding": 4, "draft": 6}
    tables.check_integrity()


def test_a_sliding_row_holds_no_more_than_its_span_however_long_it_gets(tables: RowTables) -> None:
    index = admit(tables, 1)
    keep = WINDOW + DEPTH
    for length in range(1, CONTEXT):
        tables.reserve(index, min(length + 1 + DEPTH, CONTEXT))
        held = sum(block != 0 for block in tables.blocks(index, "sliding"))
        assert held <= tables.blocks_for(CONTEXT, span=keep + 1 + DEPTH)["sliding"]
        tables.free_behind(index, length + 1, keep)
    assert len(tables.blocks(index, "sliding")) == len(tables.blocks(index, "full"))


def test_rollback_past_what_was_freed_is_refused_and_never_silently_ignored(tables: RowTables) -> None:
    index = admit(tables, 24)
    tables.free_behind(index, 24, WINDOW)
    freed = tables.freed_behind(index, "sliding") * BLOCK
    before = {name: tables.blocks(index, name) for name in NAMES}
    with pytest.raises(IntegrityError, match="sliding freed 16 positions and its window is 6"):
        tables.trim(index, freed + WINDOW - 2)
    assert {name: tables.blocks(index, name) for name in NAMES} == before
    tables.trim(index, freed + WINDOW - 1)
    tables.check_integrity()


def test_keeping_less_than_the_window_is_refused(tables: RowTables) -> None:
    index = admit(tables, 24)
    with pytest.raises(IntegrityError, match="fewer than its window of 6"):
        tables.free_behind(index, 24, WINDOW - 1)


def test_release_gives_everything_back_once_and_the_index_only_then(tables: RowTables) -> None:
    index = admit(tables, 24)
    tables.free_behind(index, 24, WINDOW)
    with pytest.raises(IntegrityError, match="while it holds full blocks"):
        tables.release_index(index)
    tables.release(index)
    tables.release(index)
    assert used(tables) == dict.fromkeys(NAMES, 0)
    tables.release_index(index)
    with pytest.raises(IntegrityError, match="not in use"):
        tables.release(index)
    tables.check_integrity()


def test_release_with_clear_leaves_no_value_of_the_row_but_spares_shared_blocks(
    tables: RowTables, store: KVStore
) -> None:
    index = admit(tables, 8)
    for name in NAMES:
        for memory in store.tensors(name):
            memory.fill_(float("nan"))
    own, lent = tables.blocks(index, "full")[1], tables.blocks(index, "full")[0]
    shared = tables.share(index, BLOCK)
    tables.release(index, clear=True)
    for memory in store.tensors("full"):
        cells = memory.reshape(-1, BLOCK, *memory.shape[1:])
        assert not cells[own].any() and not cells[0].any()
        assert bool(cells[lent].isnan().all())
    tables.unshare(shared)
    assert used(tables) == dict.fromkeys(NAMES, 0)


def test_an_adopted_prefix_is_shared_by_reference_and_its_tail_copied_on_write(
    tables: RowTables, store: KVStore
) -> None:
    first = admit(tables, 10)
    for name in NAMES:
        for memory in store.tensors(name):
            memory.copy_(torch.randn(memory.shape, dtype=memory.dtype, generator=torch.Generator().manual_seed(3)))
    prefix = tables.share(first, 10)
    second = tables.acquire_index() or 0
    tables.adopt(second, prefix, 10)
    assert tables.blocks(second, "full") == tables.blocks(first, "full")
    with pytest.raises(IntegrityError, match="shared or freed full block"):
        tables.forward_batch([second], [[1]], [10], [CONTEXT])
    tables.make_writable(second, 10)
    mine, theirs = tables.blocks(second, "full"), tables.blocks(first, "full")
    assert mine[:2] == theirs[:2] and mine[2] != theirs[2]
    for memory in store.tensors("full"):
        cells = memory.reshape(-1, BLOCK, *memory.shape[1:])
        assert torch.equal(cells[mine[2]], cells[theirs[2]])
    tables.forward_batch([second], [[1]], [10], [CONTEXT])
    tables.check_integrity({name: dict.fromkeys(blocks, 1) for name, blocks in prefix.items()})


def test_one_group_alone_is_made_writable_and_laid_out(tables: RowTables) -> None:
    """A drafter that fills in what a shared prefix lacks: the other groups stay shared, and are not asked."""
    first = admit(tables, 10)
    second = tables.acquire_index() or 0
    prefix = {name: tables.blocks(first, name) for name in NAMES}
    tables.adopt(second, prefix, 10)
    tables.make_writable(second, 5, ("draft",))
    mine = tables.blocks(second, "draft")
    assert mine[0] == prefix["draft"][0] and not set(mine[1:]) & set(prefix["draft"])
    assert all(tables.blocks(second, name) == prefix[name] for name in NAMES if name != "draft")
    batch = tables.forward_batch([second], [[1, 2]], [5], [CONTEXT], groups=("draft",))
    assert list(batch.slots) == list(batch.block_tables) == ["draft"]
    whole = tables.forward_batch([first], [[1, 2]], [10], [CONTEXT])
    assert set(whole.slots) == set(NAMES)
    with pytest.raises(IntegrityError, match="shared or freed"):
        tables.forward_batch([second], [[1, 2]], [5], [CONTEXT])


def test_the_last_owner_of_a_shared_tail_writes_it_without_a_copy(tables: RowTables) -> None:
    first = admit(tables, 6)
    second = tables.acquire_index() or 0
    tables.adopt(second, {name: tables.blocks(first, name) for name in NAMES}, 6)
    tables.release(first)
    before = tables.blocks(second, "full")
    tables.make_writable(second, 6)
    assert tables.blocks(second, "full") == before
    tables.forward_batch([second], [[1]], [6], [CONTEXT])


def test_copy_on_write_copies_nothing_when_one_group_is_out_of_blocks(tables: RowTables) -> None:
    first = admit(tables, 6)
    second = tables.acquire_index() or 0
    tables.adopt(second, {name: tables.blocks(first, name) for name in NAMES}, 6)
    rest = tables.pools["draft"].allocate(tables.pools["draft"].free_blocks)
    with pytest.raises(OutOfBlocks):
        tables.make_writable(second, 6)
    assert all(tables.blocks(second, name) == tables.blocks(first, name) for name in NAMES)
    tables.check_integrity({"draft": dict.fromkeys(rest, 1)})


@pytest.mark.parametrize("damage", ["missing group", "too short", "freed in sight", "free block", "scratch in full"])
def test_a_prefix_that_does_not_hold_what_it_says_is_not_adopted(tables: RowTables, damage: str) -> None:
    first = admit(tables, 12)
    blocks = {name: tables.blocks(first, name) for name in NAMES}
    if damage == "missing group":
        del blocks["draft"]
    elif damage == "too short":
        blocks["draft"].pop()
    elif damage == "freed in sight":
        blocks["sliding"][:2] = [0, 0]
    elif damage == "free block":
        blocks["draft"][2] = next(b for b in range(1, 19) if not tables.pools["draft"].ref_count(b))
    else:
        blocks["full"][0] = 0
    second = tables.acquire_index() or 0
    with pytest.raises(IntegrityError):
        tables.adopt(second, blocks, 12)
    assert not tables.holds_blocks(second)
    tables.check_integrity()


def test_a_row_that_holds_blocks_adopts_nothing(tables: RowTables) -> None:
    first, second = admit(tables, 6), admit(tables, 1)
    with pytest.raises(IntegrityError, match="but holds full blocks"):
        tables.adopt(second, {name: tables.blocks(first, name) for name in NAMES}, 6)


def test_what_can_never_fit_is_known_before_admission(tables: RowTables) -> None:
    assert tables.blocks_for(33) == dict.fromkeys(NAMES, 9)
    assert tables.blocks_for(33, span=10) == {"full": 9, "sliding": 4, "draft": 9}
    assert tables.fits_alone(CONTEXT)
    assert not tables.fits_alone(CONTEXT + 1)
    pools = {"full": BlockPool(20, BLOCK), "sliding": BlockPool(5, BLOCK), "draft": BlockPool(20, BLOCK)}
    small = RowTables(ROWS, CONTEXT, GROUPS, pools, None)
    assert small.fits_alone(16) and not small.fits_alone(17)
    assert small.fits_alone(CONTEXT, span=10) and not small.fits_alone(CONTEXT, span=18)


def test_groups_may_share_one_pool() -> None:
    pool = BlockPool(12, BLOCK)
    tables = RowTables(ROWS, CONTEXT, (GROUPS[0], GROUPS[2]), {"full": pool, "draft": pool}, None)
    assert tables.fits_alone(20) and not tables.fits_alone(21)
    index = admit(tables, 20)
    assert not set(tables.blocks(index, "full")) & set(tables.blocks(index, "draft"))
    with pytest.raises(OutOfBlocks):
        tables.reserve(index, 21)
    assert pool.free_blocks == 1
    tables.check_integrity()


def test_pools_of_different_block_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="one common block size"):
        RowTables(1, 8, GROUPS[:2], {"full": BlockPool(4, 4), "sliding": BlockPool(4, 8)}, None)


def test_logical_blocks_of_all_groups_stay_aligned(tables: RowTables) -> None:
    index = admit(tables, 9)
    for length in range(9, 30):
        tables.reserve(index, length + 1)
        tables.free_behind(index, length, WINDOW)
        assert len({len(tables.blocks(index, name)) for name in NAMES}) == 1


@pytest.mark.parametrize("damage", ["twice", "lost", "two writers", "device", "freed", "index", "read-only"])
def test_check_integrity_reports_damage(tables: RowTables, damage: str) -> None:
    first, second = admit(tables, 8), admit(tables, 8)
    table = tables._tables["full"]
    tables.check_integrity()
    if damage == "twice":
        table.blocks[first][1] = table.blocks[first][0]
    elif damage == "lost":
        table.blocks[first].pop()
        table.host[first, 1] = 0
    elif damage == "two writers":
        table.pool.release([table.blocks[first][0]])
        table.pool.retain([table.blocks[second][0]])
        table.blocks[first][0] = table.blocks[second][0]
        table.host[first, 0] = table.blocks[second][0]
    elif damage == "device":
        table.host[first, 5] = 1
    elif damage == "freed":
        table.freed[first] = 1
    elif damage == "read-only":
        table.read_only[first] = 3
    else:
        tables._in_use[first] = False
    with pytest.raises(IntegrityError):
        tables.check_integrity()


def test_check_integrity_wants_the_group_names_of_external_references(tables: RowTables) -> None:
    with pytest.raises(IntegrityError, match="nowhere"):
        tables.check_integrity({"nowhere": {1: 1}})


def test_a_group_without_window_never_frees_behind() -> None:
    pool = BlockPool(12, BLOCK)
    tables = RowTables(1, CONTEXT, [BlockGroupSpec("full", ())], {"full": pool}, None)
    index = admit(tables, 30)
    tables.free_behind(index, 30, 1)
    assert pool.free_blocks == 3
