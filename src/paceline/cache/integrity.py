"""Cross-checks of block tables against pools and against each other. For tests and diagnosis: it walks everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from ..core.errors import IntegrityError
from .block_table import BlockTable
from .pool import SCRATCH_BLOCK, BlockPool


def check_tables(
    tables: Collection[BlockTable], in_use: Sequence[bool], external: Mapping[str, Mapping[int, int]]
) -> None:
    """Raise :class:`IntegrityError` unless every pool counts exactly the references of the tables and of ``external``
    (group -> block -> count), each block has at most one row that may write it, rows without index hold nothing and
    the device tables equal the host's."""
    names = {table.spec.name for table in tables}
    if not names.issuperset(external):
        raise IntegrityError(f"external references name unknown block groups {sorted(set(external) - names)}")
    pools: dict[int, tuple[BlockPool, Counter[int]]] = {}
    writers: dict[tuple[int, int], str] = {}
    for table in tables:
        _, references = pools.setdefault(id(table.pool), (table.pool, Counter()))
        for index, used in enumerate(in_use):
            if not used and table.blocks[index]:
                raise IntegrityError(f"row {index} is not in use but holds {table.spec.name} blocks")
            _check_row(table, index)
            references.update(table.held(index))
            _note_writers(table, index, writers)
        references.update(external.get(table.spec.name, {}))
        _check_device(table)
    for pool, references in pools.values():
        pool.check_integrity(references)


def _check_row(table: BlockTable, index: int) -> None:
    blocks, freed, name = table.blocks[index], table.freed[index], table.spec.name
    if freed and table.spec.window is None:
        raise IntegrityError(f"row {index} freed {name} blocks although the group has no window")
    if any(block != SCRATCH_BLOCK for block in blocks[:freed]) or SCRATCH_BLOCK in blocks[freed:]:
        raise IntegrityError(f"row {index}: scratch stands elsewhere than in the {freed} freed {name} places")
    if len(set(blocks[freed:])) != len(blocks) - freed:
        raise IntegrityError(f"row {index} holds a {name} block twice")
    if not 0 <= table.read_only[index] <= len(blocks):
        raise IntegrityError(f"row {index} has {table.read_only[index]} read-only {name} blocks of {len(blocks)}")


def _note_writers(table: BlockTable, index: int, writers: dict[tuple[int, int], str]) -> None:
    who = f"row {index} ({table.spec.name})"
    for block in table.blocks[index][table.writable_from(index) :]:
        other = writers.setdefault((id(table.pool), block), who)
        if other != who:
            raise IntegrityError(f"block {block} may be written by both {other} and {who}")


def _check_device(table: BlockTable) -> None:
    rows, width = table.host.shape
    padded = [blocks + [SCRATCH_BLOCK] * (width - len(blocks)) for blocks in table.blocks]
    if not torch.equal(table.device().cpu(), torch.tensor(padded).reshape(rows, width)):
        raise IntegrityError(f"the device tables of {table.spec.name} differ from the host's")
