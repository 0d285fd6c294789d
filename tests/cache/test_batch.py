"""Layout of a forward, against a plain loop over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.kit import BLOCK, CONTEXT, GROUPS, POOL_BLOCKS, ROWS, WINDOW, SeparateTables

from paceline.cache.pool import BlockPool
from paceline.cache.tables import RowTables
from paceline.core.batch import ForwardBatch
from paceline.core.errors import IntegrityError


def make_tables(kind: type[RowTables] = RowTables) -> RowTables:
    pools = {name: BlockPool(60, BLOCK) for name in POOL_BLOCKS}
    return kind(ROWS, CONTEXT, GROUPS, pools, None)


def plain_layout(
    tables: RowTables,
    indices: Sequence[int],
    tokens: Sequence[Sequence[int]],
    contexts: Sequence[int],
    limits: Sequence[int],
    live: Sequence[bool],
) -> tuple[list[int], list[int], dict[str, list[int]], dict[str, list[list[int]]]]:
    """Tokens, positions, slots and block tables as the record's description says, token by token."""
    flat, positions = [], []
    slots: dict[str, list[int]] = {group.name: [] for group in GROUPS}
    padded: dict[str, list[list[int]]] = {group.name: [] for group in GROUPS}
    width = max(-(-(c + len(t)) // BLOCK) for c, t in zip(contexts, tokens, strict=True))
    for row, index in enumerate(indices):
        for offset, token in enumerate(tokens[row]):
            position = contexts[row] + offset
            flat.append(token)
            positions.append(position)
            kept = live[row] and position < limits[row]
            for name, found in slots.items():
                block = tables.blocks(index, name)[position // BLOCK] if kept else 0
                found.append(block * BLOCK + position % BLOCK)
        for name, found_tables in padded.items():
            blocks = tables.blocks(index, name)[:width]
            found_tables.append(blocks + [0] * (width - len(blocks)))
    return flat, positions, slots, padded


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int], list[int], list[bool]]:
    """Rows in any order, ragged windows, contexts up to the end of the context, limits before, inside or after."""
    indices = draw(st.permutations(range(ROWS)))[: draw(st.integers(1, ROWS))]
    tokens = [draw(st.lists(st.integers(0, 2**31), max_size=12)) for _ in indices]
    contexts = [draw(st.integers(0, CONTEXT)) for _ in indices]
    limits = [draw(st.integers(0, CONTEXT)) for _ in indices]
    live = [draw(st.booleans()) for _ in indices]
    return list(indices), tokens, contexts, limits, live


@pytest.mark.parametrize("kind", [RowTables, SeparateTables])
@given(case=cases())
def test_layout_equals_the_plain_loop(
    kind: type[RowTables], case: tuple[list[int], list[list[int]], list[int], list[int], list[bool]]
) -> None:
    indices, tokens, contexts, limits, live = case
    tables = make_tables(kind)
    for _ in range(ROWS):
        tables.acquire_index()
    for row, index in enumerate(indices):
        tables.reserve(index, min(max(contexts[row] + len(tokens[row]), 1), CONTEXT))
        tables.free_behind(index, contexts[row], WINDOW)
    batch = tables.forward_batch(indices, tokens, contexts, limits, live)
    flat, positions, slots, padded = plain_layout(tables, indices, tokens, contexts, limits, live)
    assert batch.tokens.tolist() == flat
    assert batch.positions.tolist() == positions
    assert batch.indices.tolist() == indices
    assert list(batch.query_lens) == [len(row) for row in tokens]
    assert list(batch.context_lens) == contexts
    assert {name: found.tolist() for name, found in batch.slots.items()} == slots
    assert {name: found.tolist() for name, found in batch.block_tables.items()} == padded
    assert all(t.dtype == torch.int64 for t in _tensors(batch))


def _tensors(batch: ForwardBatch) -> list[torch.Tensor]:
    return [batch.tokens, batch.positions, batch.indices, *batch.slots.values(), *batch.block_tables.values()]


def test_no_kept_slot_is_written_twice_and_none_lies_in_scratch() -> None:
    tables = make_tables()
    indices = [tables.acquire_index() or 0 for _ in range(3)]
    for index in indices:
        tables.reserve(index, 20)
    batch = tables.forward_batch(indices, [[1] * 5] * 3, [15, 9, 3], [CONTEXT] * 3)
    for slots in batch.slots.values():
        assert len(set(slots.tolist())) == 15
        assert int(slots.min()) >= BLOCK


def test_positions_at_the_limit_go_to_scratch_even_where_the_row_has_blocks() -> None:
    tables = make_tables()
    index = tables.acquire_index() or 0
    tables.reserve(index, 20)
    kept = tables.forward_batch([index], [[1] * 4], [10], [12]).slots["full"]
    assert [int(slot) >= BLOCK for slot in kept] == [True, True, False, False]


def test_a_window_past_the_context_is_laid_out_and_writes_to_scratch_only() -> None:
    tables = make_tables()
    index = tables.acquire_index() or 0
    tables.reserve(index, CONTEXT)
    batch = tables.forward_batch([index], [[1] * 20], [CONTEXT - 1], [CONTEXT])
    assert batch.block_tables["full"].shape == (1, -(-(CONTEXT + 19) // BLOCK))
    assert batch.block_tables["full"][0, CONTEXT // BLOCK :].eq(0).all()
    assert all(int(slot) < BLOCK for slot in batch.slots["full"][1:])


def test_a_batch_does_not_change_when_tables_do() -> None:
    tables = make_tables()
    index = tables.acquire_index() or 0
    tables.reserve(index, 12)
    batch = tables.forward_batch([index], [[1, 2]], [9], [CONTEXT])
    before = [tensor.clone() for tensor in _tensors(batch)]
    tables.release(index)
    assert all(torch.equal(a, b) for a, b in zip(_tensors(batch), before, strict=True))


@pytest.mark.parametrize(
    ("context", "limit", "message"),
    [(12, CONTEXT, "fewer full blocks"), (2, CONTEXT, "shared or freed sliding block")],
)
def test_a_kept_position_needs_a_block_that_the_row_may_write(context: int, limit: int, message: str) -> None:
    tables = make_tables()
    index = tables.acquire_index() or 0
    tables.reserve(index, 12)
    tables.free_behind(index, 11, WINDOW)
    with pytest.raises(IntegrityError, match=message):
        tables.forward_batch([index], [[1]], [context], [limit])
    tables.forward_batch([index], [[1]], [context], [limit], live=[False])


def test_rows_without_index_and_batches_without_rows_are_refused() -> None:
    tables = make_tables()
    with pytest.raises(IntegrityError, match="not in use"):
        tables.forward_batch([0], [[1]], [0], [1])
    with pytest.raises(IntegrityError, match="without any row"):
        tables.forward_batch([], [], [], [])
