"""The block pool: references, exactly-once release, contiguous growth."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cache.pool import BlockPool
from paceline.core.errors import IntegrityError, OutOfBlocks

BLOCKS = 40


def is_run(blocks: list[int]) -> bool:
    return blocks == list(range(blocks[0], blocks[0] + len(blocks)))


def test_all_blocks_but_scratch_are_handed_out_once() -> None:
    pool = BlockPool(BLOCKS, 16)
    blocks = [pool.allocate(1)[0] for _ in range(BLOCKS - 1)]
    assert sorted(blocks) == list(range(1, BLOCKS))
    assert pool.free_blocks == 0
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(1)
    assert (caught.value.wanted, caught.value.free) == (1, 0)


def test_a_block_is_free_again_when_its_last_owner_releases_it() -> None:
    pool = BlockPool(BLOCKS, 16)
    (block,) = pool.allocate(1)
    pool.retain([block])
    pool.release([block])
    assert (pool.ref_count(block), pool.free_blocks) == (1, BLOCKS - 2)
    pool.release([block])
    assert (pool.ref_count(block), pool.free_blocks) == (0, BLOCKS - 1)


@pytest.mark.parametrize("extra", [0, BLOCKS, -1, 5])
def test_releasing_or_retaining_what_nobody_holds_changes_nothing(extra: int) -> None:
    pool = BlockPool(BLOCKS, 16)
    held = pool.allocate(3)
    assert 5 not in held
    for call in (pool.release, pool.retain):
        with pytest.raises(IntegrityError, match=str(extra)):
            call([*held, extra])
    pool.check_integrity(dict.fromkeys(held, 1))


def test_a_list_that_names_a_block_once_too_often_releases_nothing() -> None:
    pool = BlockPool(BLOCKS, 16)
    held = pool.allocate(2)
    with pytest.raises(IntegrityError):
        pool.release([*held, held[0]])
    pool.check_integrity(dict.fromkeys(held, 1))


def test_a_row_grows_into_the_physically_next_block() -> None:
    pool = BlockPool(BLOCKS, 16)
    blocks = pool.allocate(3)
    for _ in range(20):
        blocks += pool.allocate(1, after=blocks[-1])
    assert is_run(blocks)


def test_rows_admitted_together_have_room_to_grow_contiguously() -> None:
    pool = BlockPool(400, 16)
    rows = [pool.allocate(5) for _ in range(4)]
    for _ in range(40):
        for blocks in rows:
            blocks += pool.allocate(1, after=blocks[-1])
    assert all(is_run(blocks) for blocks in rows)


def test_a_new_row_starts_inside_the_longest_run_and_in_a_nearly_full_pool_at_its_start() -> None:
    pool = BlockPool(200, 16)
    first = pool.allocate(4)
    (second,) = pool.allocate(1)
    assert first[-1] + 50 < second < 150
    rest = pool.allocate(pool.free_blocks - 12)
    hole = sorted(rest)[40:60]
    pool.release(hole)
    assert pool.allocate(10)[0] > hole[0]
    pool.release(pool.allocate(3))
    full = BlockPool(200, 16)
    held = full.allocate(199)
    full.release(held[50:60])
    assert full.allocate(2) == held[50:52]


def test_more_than_any_free_run_holds_is_taken_in_pieces() -> None:
    pool = BlockPool(21, 16)
    held = pool.allocate(20)
    pool.release(held[2:6] + held[10:17])
    assert pool.allocate(11, after=held[1]) == held[2:6] + held[10:17]


def test_growth_goes_elsewhere_when_the_next_block_is_taken() -> None:
    pool = BlockPool(100, 16)
    first = pool.allocate(98)
    pool.release(first[40:60])
    blocks = pool.allocate(1, after=first[10])
    assert blocks[0] in first[40:60]
    assert pool.allocate(1, after=blocks[0]) == [blocks[0] + 1]


@given(st.integers(0, 2**32))
def test_references_and_free_runs_agree_under_any_sequence(seed: int) -> None:
    chance = random.Random(seed)
    pool = BlockPool(BLOCKS, 16)
    held: list[int] = []
    for _ in range(60):
        count = chance.randrange(8)
        if chance.random() < 0.5:
            after = chance.choice(held) if held and chance.random() < 0.7 else None
            if count > pool.free_blocks:
                with pytest.raises(OutOfBlocks):
                    pool.allocate(count, after)
            else:
                taken = pool.allocate(count, after)
                assert len(set(taken)) == count and not set(taken) & set(held)
                held += taken
        elif chance.random() < 0.2:
            again = sorted(set(chance.sample(held, min(count, len(held)))))
            pool.retain(again)
            held += again
        else:
            chance.shuffle(held)
            pool.release(held[:count])
            del held[:count]
        pool.check_integrity(Counter(held))
    pool.release(held)
    pool.check_integrity({})
    assert pool.allocate(BLOCKS - 1) == list(range(1, BLOCKS))


def test_check_integrity_reports_what_is_wrong() -> None:
    pool = BlockPool(BLOCKS, 16)
    held = pool.allocate(3)
    right = dict.fromkeys(held, 1)
    pool.check_integrity(right)
    for wrong in ({}, {**right, held[0]: 2}, {**right, 0: 1}, {**right, BLOCKS: 1}, {**right, 30: 1}):
        with pytest.raises(IntegrityError):
            pool.check_integrity(wrong)


@pytest.mark.parametrize("damage", ["leak", "split", "heap", "count"])
def test_check_integrity_sees_damaged_free_runs(damage: str) -> None:
    pool = BlockPool(BLOCKS, 16)
    pool.release(pool.allocate(5))
    if damage == "leak":
        pool._end_of.clear()
    elif damage == "split":
        pool._end_of = {1: 9, 10: BLOCKS - 1}
        pool._start_of = {9: 1, BLOCKS - 1: 10}
    elif damage == "heap":
        pool._heap.clear()
    else:
        pool._free -= 1
    with pytest.raises(IntegrityError):
        pool.check_integrity({})


def test_sizes_that_make_no_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1, 16)
    with pytest.raises(ValueError, match="block_size"):
        BlockPool(4, 0)
