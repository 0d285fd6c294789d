"""Phase timing: what is timed and charged to whom, operation counts, the profile of the target's parts."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from tests.engine.test_calibration import load, subject_of
from tests.engine.test_ledger import make_row

from paceline.core.config import EngineConfig
from paceline.core.stats import EngineStats
from paceline.draft.base import NullDrafter
from paceline.engine.phases import (
    NULL_CLOCK,
    PHASES,
    LayerProfile,
    OpInventory,
    Phase,
    PhaseClock,
    device_barrier,
    phase_clock,
)
from paceline.engine.probes import DummyRows, TargetProbe


class Time:
    """The clock of a test, and what is asked for between two looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


def run_round(clock: PhaseClock, watch: Time, rows: int = 1, phases: tuple[float, ...] = (1, 20, 3, 2)) -> list[object]:
    """One round with a delivery of 100 seconds in between; its rows."""
    made = [make_row(index) for index in range(rows)]
    clock.start(made)
    for phase, seconds in zip(PHASES, phases, strict=True):
        if phase == "commit":
            watch.passes(100.0)
            clock.resume()
        watch.passes(seconds)
        clock.mark(phase)
    return list(made)


def test_phases_are_summed_per_request_and_delivery_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stats = Time(monkeypatch), EngineStats()
    clock = PhaseClock(stats, lambda: None)
    row = make_row()
    for _ in range(2):
        clock.start([row])
        for phase in PHASES:
            watch.passes(0.5)
            if phase == "commit":
                clock.resume()
                watch.passes(0.25)
            clock.mark(phase)
        watch.passes(7.0)
    assert row.spec.phase_ms == {"draft": 1000.0, "verify": 1000.0, "sample": 1000.0, "commit": 500.0, "rounds": 2.0}


def test_a_shared_round_charges_each_row_its_whole_time_and_the_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stats = Time(monkeypatch), EngineStats()
    rows = run_round(PhaseClock(stats, lambda: None), watch, rows=3)
    expected = {"draft": 1e3, "verify": 20e3, "sample": 3e3, "commit": 2e3, "rounds": 1.0}
    assert [row.spec.phase_ms for row in rows] == [expected] * 3  # type: ignore[attr-defined]
    assert stats.phase_ms == expected


def test_what_planning_takes_belongs_to_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stats = Time(monkeypatch), EngineStats()
    clock = PhaseClock(stats, lambda: None)
    for _ in range(2):
        clock.plan()
        watch.passes(4.0)
        run_round(clock, watch)
        watch.passes(50.0)
    run_round(clock, watch)
    assert stats.phase_ms is not None
    assert (stats.phase_ms["draft"], stats.phase_ms["rounds"]) == (11e3, 3.0)


def test_a_round_that_failed_is_charged_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stats = Time(monkeypatch), EngineStats()
    clock = PhaseClock(stats, lambda: None)
    failed = make_row()
    clock.start([failed])
    watch.passes(50.0)
    clock.mark("draft")
    run_round(clock, watch)
    assert failed.spec.phase_ms is None
    assert stats.phase_ms is not None
    assert stats.phase_ms["draft"] == 1e3


def test_the_device_is_waited_for_at_the_end_of_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    clock = PhaseClock(EngineStats(), lambda: waits.append(1))
    run_round(clock, Time(monkeypatch))
    assert len(waits) >= len(PHASES) + 1


class _Tool:
    """Notes which phases ran inside it."""

    def __init__(self) -> None:
        self.entered: list[Phase] = []
        self.open = 0

    def during(self, phase: Phase) -> AbstractContextManager[object]:
        self.entered.append(phase)
        return nullcontext()

    def report(self, stats: EngineStats) -> None:
        self.open += 1


def test_tools_run_in_every_phase_and_report_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = _Tool()
    run_round(PhaseClock(EngineStats(), lambda: None, [tool]), Time(monkeypatch))
    assert tool.entered == list(PHASES)
    assert tool.open == 1


def test_operations_are_counted_by_phase_and_name() -> None:
    inventory, stats, x = OpInventory(), EngineStats(), torch.ones(2, 2)
    with torch.inference_mode():
        for phase in PHASES:
            with inventory.during(phase):
                for _ in range(3 if phase == "verify" else 1):
                    torch.mm(x, x).relu()
        torch.mm(x, x)
    inventory.report(stats)
    assert stats.op_counts["draft"] == {"aten::mm": 1, "aten::relu": 1}
    assert stats.op_counts["verify"] == {"aten::mm": 3, "aten::relu": 3}
    assert set(stats.op_counts) == {"draft", "verify"}


def test_parts_of_the_target_are_timed_during_verify_only() -> None:
    target = load()
    subject = subject_of(NullDrafter(), target)
    profile, stats = LayerProfile(target, lambda: None), EngineStats()
    rows = DummyRows(subject.parts.tables, 2)
    probe = TargetProbe(target, rows)
    with torch.inference_mode():
        probe((2, 3, 64))
        profile.report(stats)
        assert stats.layer_ms == {}
        with profile.during("verify"):
            probe((2, 3, 64))
        with profile.during("draft"):
            probe((2, 3, 64))
    rows.close()
    profile.report(stats)
    assert set(stats.layer_ms) == {component.name for component in target.components()}
    inside = sum(stats.layer_ms[f"layers.0.attention.{part}"] for part in ("qkv", "out"))
    assert 0 < inside < stats.layer_ms["layers.0.attention"]


def test_a_profile_changes_no_number_and_comes_off_again() -> None:
    target = load()
    subject = subject_of(NullDrafter(), target)
    rows = DummyRows(subject.parts.tables, 1)
    assert rows.place(1, 0, 8)
    batch = subject.parts.tables.forward_batch(rows.indices, [[3, 1, 4, 1, 5]], [0], [8])
    plain = target.forward(batch).hidden
    parts = [getattr(owner, name) for _, owner, name in target.components()]
    profile = LayerProfile(target, lambda: None)
    with profile.during("verify"):
        assert torch.equal(target.forward(batch).hidden, plain)
    profile.detach()
    assert [getattr(owner, name) for _, owner, name in target.components()] == parts
    rows.close()


def test_the_clock_follows_the_settings() -> None:
    target, stats = load(), EngineStats()

    def clock(**settings: bool) -> object:
        return phase_clock(EngineConfig.build(environ={}, **settings).runtime, target, stats)

    assert clock() is NULL_CLOCK
    assert isinstance(clock(phase_timing=True), PhaseClock)
    run = clock(phase_timing=True, op_inventory=True, layer_profile=True)
    assert isinstance(run, PhaseClock)
    assert {type(tool) for tool in run._tools} == {OpInventory, LayerProfile}
    NULL_CLOCK.plan()
    NULL_CLOCK.start([make_row()])
    NULL_CLOCK.mark("draft")
    NULL_CLOCK.resume()


def test_the_cpu_needs_no_barrier() -> None:
    assert device_barrier(torch.device("cpu"))() is None
