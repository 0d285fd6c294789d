"""Calibration on a tiny model: a table for every question, no trace in the tables, kept on disk, drafters contained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cache.family import FamilyCache
from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.batch import Draft, RoundBatch, Window
from paceline.core.costs import FREE
from paceline.core.row import Row
from paceline.draft.base import DraftProvider, DraftRows, NullDrafter
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.engine import calibration
from paceline.engine.build import target_view
from paceline.engine.calibration import CostSubject, costs_for, kept_costs, measured_costs
from paceline.engine.cost_cache import CostCache
from paceline.engine.draws import RowSampler
from paceline.engine.launch import EagerLauncher, RoundAsk
from paceline.engine.state import EngineParts
from paceline.models.artifact import open_artifact
from paceline.models.binding import TargetBinding, load_target
from paceline.testing.models import TinyModel, tiny_model


def load(family: str = "llama", context: int = 256) -> TargetBinding:
    model = TinyModel(family=family, context=context)
    return load_target(open_artifact(str(tiny_model(model))), "float32", "cpu", None)


def subject_of(
    provider: DraftProvider,
    target: TargetBinding | None = None,
    *,
    depth: int = 3,
    rows: int = 3,
    blocks: int = 64,
    on_device: bool = False,
) -> CostSubject:
    target = load() if target is None else target
    view = target_view(target, (), None)
    groups = (*target.kv_groups, *provider.kv_groups(view))
    counts = {group.name: blocks for group in groups}
    store = KVStore(groups, counts, 16, target.kv_dtype, target.device)
    target.attach(store)
    pools = {name: BlockPool(count, 16) for name, count in counts.items()}
    tables = RowTables(rows, target.max_model_len, groups, pools, store, target.device)
    parts = EngineParts(
        target=target, tables=tables, cache=FamilyCache(tables), prefill_chunk=64, depth=depth, device_round=on_device
    )
    return CostSubject(parts, provider, depth, replace(view, tables=tables), RowSampler(tables))


def trace(subject: CostSubject) -> dict[str, Any]:
    """What an engine would find in the tables."""
    tables = subject.parts.tables
    tables.check_integrity()
    return {
        "indices": tables.free_indices,
        "blocks": {name: pool.free_blocks for name, pool in tables.pools.items()},
        "live": tables.live.tolist(),
        "tables": {group.name: tables.block_table(group.name).tolist() for group in tables.groups},
        "first": tables._free_indices[0],
    }


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_table_is_made_and_no_trace_is_left(family: str) -> None:
    subject = subject_of(NullDrafter(), load(family))
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert costs.draft_grid == FREE
    assert costs.plain_grid.axes[0] == (1, 2, 3)
    assert costs.plain_grid.axes[1] == (64,)
    assert 0 < costs.plain(1, 64) <= costs.plain(3, 64)
    assert costs.verify(1, 4, 64) >= costs.plain(1, 64)
    assert costs.verify(3, 12, 200) >= costs.verify(3, 6, 64)
    assert 0 <= costs.error < 10
    json.dumps(costs.to_json())


def test_a_leak_would_be_noticed() -> None:
    subject = subject_of(NullDrafter())
    before = trace(subject)
    index = subject.parts.tables.acquire_index()
    assert index is not None
    subject.parts.tables.reserve(index, 20)
    assert trace(subject) != before


def test_the_widest_window_is_measured_alone_too() -> None:
    costs = measured_costs(replace(subject_of(NullDrafter(), depth=1, rows=1), span=16), seconds=5.0)
    assert max(costs.verify_grid.axes[1]) == 17


@pytest.mark.parametrize(("rows", "blocks"), [(3, 8), (8, 6)])
def test_a_small_pool_bounds_what_is_measured(rows: int, blocks: int) -> None:
    subject = subject_of(NullDrafter(), rows=rows, blocks=blocks)
    costs = measured_costs(subject, seconds=5.0)
    assert costs.plain_grid.axes[0][0] == 1
    assert costs.plain_grid.axes[0][-1] < rows
    assert costs.plain(rows, 64) >= costs.plain(1, 64)


def test_a_context_shorter_than_any_measured_length() -> None:
    costs = measured_costs(subject_of(NullDrafter(), load(context=24)), seconds=5.0)
    assert costs.plain_grid.axes[1] == (20,)


def test_a_drafter_with_a_forward_is_timed_and_leaves_no_trace() -> None:
    subject = subject_of(ModelDrafter(load()))
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert costs.draft_grid.axes[0] == (1, 2, 3)
    assert costs.draft_grid.axes[1][-1] == 3
    assert 0 < costs.draft(1, 1, 64) <= costs.draft(1, 3, 64) <= costs.draft(3, 3, 64)


def test_a_small_pool_bounds_the_rows_that_are_drafted_for(caplog: pytest.LogCaptureFixture) -> None:
    subject = subject_of(ModelDrafter(load()), rows=4, blocks=24)
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert costs.draft_grid.axes[0] == (1, 2)
    assert "cannot be measured" not in caplog.text


def test_drafting_nothing_is_not_timed() -> None:
    assert measured_costs(subject_of(ModelDrafter(load()), depth=0), seconds=5.0).draft_grid == FREE


class _Rows(DraftRows):
    """Checks the order of calls, and fails where it is told to."""

    def __init__(self, fault: str, calls: list[tuple[str, int]]) -> None:
        self._fault = fault
        self._calls = calls

    def _note(self, name: str, row: int = -1) -> None:
        self._calls.append((name, row))
        if name == self._fault:
            raise RuntimeError(f"{name} failed")

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        self._note("open_row", row.index)

    def close_row(self, row: Row) -> None:
        self._note("close_row", row.index)

    def prefill(self, rows: Sequence[Row], batch: Any, context: torch.Tensor) -> None:
        assert context.shape == (batch.tokens.shape[0], 64)
        self._note("prefill", rows[0].index)

    def draft(self, batch: RoundBatch) -> Draft:
        for row in batch.rows:
            assert len(row.tokens) == row.length + 1 == len(row.request.prompt_ids) + row.step
        self._note("draft")
        return Draft.from_lists([[1] * depth for depth in batch.depths])

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        assert window.context.shape == (window.batch.tokens.shape[0], 64)
        assert [row.length for row in batch.rows] == [start + 1 for start in window.batch.context_lens]
        assert not any(accepted)
        self._note("commit")

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        self._note("draft")
        return Draft(torch.ones(len(index), depth, dtype=torch.int32), depths.to(torch.int32))

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        self._note("commit")

    def close(self) -> None:
        self._note("close")


class _Provider(DraftProvider):
    id = "watched"

    def __init__(self, fault: str = "", on_device: bool = False) -> None:
        self.fault = fault
        self.on_device = on_device
        self.calls: list[tuple[str, int]] = []

    def target_taps(self, view: Any) -> tuple[int, ...]:
        return (0, 1)

    def open(self, view: Any, draw: Any, constraints: Any) -> DraftRows:
        self.calls.append(("open", -1))
        if self.fault == "open":
            raise RuntimeError("open failed")
        rows = _Rows(self.fault, self.calls)
        rows.taps = (0, 1)
        rows.on_device = self.on_device
        return rows


def test_a_drafter_is_called_by_its_contract() -> None:
    provider = _Provider()
    measured_costs(subject_of(provider), seconds=5.0)
    calls = provider.calls
    assert calls[0] == ("open", -1)
    assert calls[-1] == ("close", -1)
    for index in range(3):
        own = [name for name, row in calls if row == index]
        assert own == ["open_row", "prefill", "close_row"]
    names = [name for name, _ in calls]
    assert names.count("draft") == names.count("commit") > 10


@pytest.mark.parametrize("fault", ["open", "open_row", "prefill", "draft", "commit", "close_row", "close"])
def test_a_drafter_that_fails_costs_its_proposals_only(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    subject = subject_of(_Provider(fault))
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert "cannot be measured" in caplog.text
    assert costs.draft(1, 3, 64) >= 2.99 * costs.plain(1, 64)


def test_device_rounds_are_timed_as_they_are_launched() -> None:
    asked: list[RoundAsk] = []

    class Watched(EagerLauncher):
        def launch(self, ask: RoundAsk) -> Any:
            asked.append(ask)
            return super().launch(ask)

    subject = replace(subject_of(_Provider(on_device=True), on_device=True), make_launcher=Watched)
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert 0 < costs.plain(1, 64) <= costs.verify(1, 4, 64)
    assert costs.draft_grid.axes[1][-1] == 3
    windows = [ask for ask in asked if ask.shape.given == 3]
    assert windows
    assert all(len(tokens) == 3 for ask in windows for tokens in ask.given)
    drafts = [ask for ask in asked if ask.shape.drafts]
    assert drafts
    assert {depth for ask in drafts for depth in ask.depths} == {1, 2, 3}


@pytest.mark.parametrize("fault", ["open_row", "prefill", "draft", "commit"])
def test_a_device_drafter_that_fails_is_contained(fault: str) -> None:
    subject = subject_of(_Provider(fault, on_device=True), on_device=True)
    before = trace(subject)
    costs = measured_costs(subject, seconds=5.0)
    assert trace(subject) == before
    assert costs.draft(1, 3, 64) >= 2.99 * costs.plain(1, 64)


def test_a_target_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(NullDrafter())
    before = trace(subject)

    def fail(hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(subject.parts.target, "logits", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        measured_costs(subject)
    assert trace(subject) == before


def test_a_table_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, cache = subject_of(NullDrafter()), CostCache(tmp_path)
    measured: list[CostSubject] = []
    original = measured_costs

    def count(asked: CostSubject, progress: Any = None) -> Any:
        measured.append(asked)
        return replace(original(asked, progress, 5.0), error=0.1)

    monkeypatch.setattr(calibration, "measured_costs", count)
    assert kept_costs(subject, "tiny@1", cache) is None
    first = costs_for(subject, "tiny@1", cache=cache)
    assert kept_costs(subject, "tiny@1", cache) == first
    assert kept_costs(subject, None, cache) is None
    assert costs_for(subject, "tiny@1", cache=cache) == first
    assert len(measured) == 1
    costs_for(subject, "tiny@2", cache=cache)
    assert len(measured) == 2
    costs_for(subject, None, cache=cache)
    assert len(measured) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_poor_table_is_measured_again_and_the_better_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, cache = subject_of(NullDrafter()), CostCache(tmp_path)
    table = measured_costs(subject, seconds=5.0)
    errors = iter([0.5, 0.9, 0.4])
    monkeypatch.setattr(calibration, "measured_costs", lambda *_: replace(table, error=next(errors)))
    assert [costs_for(subject, "tiny@1", cache=cache).error for _ in range(5)] == [0.5, 0.5, 0.4, 0.4, 0.4]
    errors = iter([0.5, 0.1])
    assert [costs_for(subject, "tiny@2", cache=cache).error for _ in range(4)] == [0.5, 0.1, 0.1, 0.1]


def test_progress_is_heard() -> None:
    heard: list[tuple[str, int, int]] = []
    measured_costs(subject_of(NullDrafter()), lambda *news: heard.append(news), 5.0)
    assert heard[-1] == ("Measuring costs", 100, 100)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
