"""What the tests of the two-model drafter share: tiny models in float64, and a look at the drafter's KV as it runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import EngineConfig
from paceline.core.request import SamplingParams
from paceline.core.row import Row
from paceline.draft.kinds._model_rows import GROUP, ModelRows
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.engine.scheduler import Scheduler
from paceline.models.artifact import open_artifact
from paceline.models.binding import TargetBinding, load_target
from paceline.testing.harness import Setup
from paceline.testing.models import TinyModel, tiny_model
from paceline.testing.reference import PlainDecoder, reference

#: The target, and a model that agrees with it about half of the time: the same weights without the last layer.
TARGET = TinyModel(mixing=0.5, layers=3)
OTHER = TinyModel(family="qwen3", seed=5, layers=1, hidden=16)


def load(path: Path, max_len: int | None = None) -> TargetBinding:
    return load_target(open_artifact(str(path)), "float64", "cpu", max_len)


@functools.cache
def target(model: TinyModel = TARGET) -> tuple[TargetBinding, PlainDecoder]:
    path = tiny_model(model)
    return load(path), reference(path)


@functools.cache
def drafting_model(model: TinyModel = TARGET) -> TargetBinding:
    """The same weights as the target of that name, loaded once more: bindings are not shared."""
    return load(tiny_model(model))


def self_drafter() -> ModelDrafter:
    return ModelDrafter(drafting_model())


@dataclass(frozen=True)
class MemorySetup(Setup):
    """With bounded host memory for preempted rows: 0 bytes = they are rebuilt by replay."""

    ram_bytes: int = 2_000_000_000

    def config(self) -> EngineConfig:
        config = super().config()
        return replace(config, runtime=replace(config.runtime, preempt_ram_bytes=self.ram_bytes))


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def model_rows(scheduler: Scheduler) -> ModelRows | None:
    """The drafter's rows object of the group that is open."""
    group = scheduler._group
    inner = None if group is None else group.drafter._rows
    inner = getattr(inner, "_inner", inner)
    return inner if isinstance(inner, ModelRows) else None


def _drafting(scheduler: Scheduler) -> list[Row]:
    return [row for row in scheduler.rows if row.drafting]


def check_coverage(scheduler: Scheduler) -> None:
    """The stated rule between rounds: at most one position behind the target, and the column says the same."""
    rows = model_rows(scheduler)
    if rows is None:
        return
    column = scheduler._parts.tables.draft_length
    for row in _drafting(scheduler):
        covered = rows.covered(row)
        assert row.length - 1 <= covered <= row.length, f"covers {covered} of {row.length}"
        assert int(column[row.index]) == covered, f"the column says {int(column[row.index])}, covered {covered}"


def check_kv(scheduler: Scheduler) -> None:
    """Where target and drafter have the same weights, their KV is the same at every covered position."""
    rows, tables = model_rows(scheduler), scheduler._parts.tables
    store, layers = tables.store, scheduler._parts.target.num_layers
    if rows is None or store is None:
        return
    for row in _drafting(scheduler):
        covered = rows.covered(row)
        theirs, ours = (_slots(tables, row, name, covered) for name in (GROUP, "full"))
        for layer in range(layers):
            for memory in (store.keys, store.values):
                same = torch.allclose(memory(layers + layer)[theirs], memory(layer)[ours], atol=1e-9)
                assert same, f"layer {layer}: KV of {row.request.id} differs below {covered}"


def _slots(tables: Any, row: Row, group: str, covered: int) -> torch.Tensor:
    blocks = torch.tensor(tables.blocks(row.index, group), dtype=torch.int64)
    places = torch.arange(covered)
    return blocks[places // tables.block_size] * tables.block_size + places % tables.block_size


def check_both(scheduler: Scheduler) -> None:
    check_coverage(scheduler)
    check_kv(scheduler)
