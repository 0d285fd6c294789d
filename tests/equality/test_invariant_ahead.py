"""Invariants 5, 18 and 19: rounds that run ahead of their reads change no stream, no statistic and no state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import DECODER, TOY, greedy, job_lists, serve

import paceline.engine.pipeline as pipeline_module
from paceline.core.costs import CostTable, Grid
from paceline.core.ports import Evidence
from paceline.draft.base import DraftProvider, NullDrafter
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Behaviour
from paceline.testing.drafters import DeviceOracleDrafter, RandomDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.workload import make_prompt

#: Rounds ahead need the device order.
AHEAD = Setup(rows=3, chunk=7, depth=3, device_round=True)


def costs(window: float, draft: float = 0.0) -> CostTable:
    """A plain step costs 1; each further position ``window``, each chain step ``draft``."""
    flat = (1, 8, 64)
    return CostTable(
        Grid(((1, 8), (1,)), (1.0, 1.0)),
        Grid(((1, 8), flat, (1,)), tuple(1.0 + window * (n - 1) for _ in range(2) for n in flat)),
        Grid(((1, 8), (0, 8), (1,)), (0.0, 8 * draft) * 2),
        error=0.0,
    )


DRAFTERS: dict[str, Callable[[], DraftProvider]] = {
    "none": NullDrafter,
    "device": lambda: DeviceOracleDrafter(DECODER.recorded),
    "device right": lambda: DeviceOracleDrafter(DECODER.recorded, wrong_every=0),
    "device ragged": lambda: DeviceOracleDrafter(DECODER.recorded, wrong_every=3, ragged=True),
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}


@st.composite
def ahead_setups(draw: st.DrawFn) -> Setup:
    return Setup(
        rows=draw(st.sampled_from([1, 2, 3, 5])),
        chunk=draw(st.sampled_from([1, 5, 64])),
        depth=draw(st.integers(1, 5)),
        device_round=True,
        kv_cache_tokens=draw(st.sampled_from([None, None, 160])),
        costs=draw(st.sampled_from([None, costs(0.0), costs(0.4), costs(5.0)])),
    )


def problems(setup: Setup, jobs: tuple[Job, ...], drafter: DraftProvider) -> list[str]:
    with open_engine(TOY, DECODER.eos_ids, setup, drafter) as engine:
        served = run_jobs(engine, jobs, timeout=20)
        found = compare(jobs, DECODER, served) + leftovers(engine)
        if engine.stats().drafter_failures:
            found.append("the drafter failed")
        return found


@given(ahead_setups(), job_lists(), st.sampled_from(sorted(DRAFTERS)))
@settings(max_examples=80)
def test_18_streams_equal_plain_decoding(setup: Setup, jobs: tuple[Job, ...], drafter: str) -> None:
    assert problems(setup, jobs, DRAFTERS[drafter]()) == []


@given(ahead_setups(), job_lists(behaving=False), st.sampled_from(["none", "device", "device right", "device ragged"]))
@settings(max_examples=40)
def test_5_ahead_and_synchronous_rounds_give_equal_results_and_statistics(
    setup: Setup, jobs: tuple[Job, ...], drafter: str
) -> None:
    setup = replace(setup, costs=None, kv_cache_tokens=None)
    ahead, device, host = (
        serve(replace(setup, device_round=on, run_ahead=run), jobs, DRAFTERS[drafter]())
        for on, run in ((True, True), (True, False), (False, False))
    )
    for job in jobs:
        for other in (device[job.name], host[job.name]):
            mine = ahead[job.name]
            assert (mine.tokens, mine.reason, mine.generated) == (other.tokens, other.reason, other.generated)
            assert (mine.spec, mine.bursts, mine.length) == (other.spec, other.bursts, other.length)


def telling(behaviour: Behaviour | None = None) -> tuple[Job, ...]:
    jobs = [Job(f"job-{n}", make_prompt(n, 9 + n, DECODER.vocab_size), greedy(24)) for n in range(4)]
    if behaviour is not None:
        jobs[1] = replace(jobs[1], behaviour=behaviour)
    return tuple(jobs)


def run(setup: Setup, jobs: tuple[Job, ...], drafter: DraftProvider, look: Callable[[Engine], object]) -> object:
    with open_engine(TOY, DECODER.eos_ids, setup, drafter) as engine:
        served = run_jobs(engine, jobs, timeout=20)
        assert compare(jobs, DECODER, served) + leftovers(engine) == []
        return look(engine)


@pytest.mark.parametrize("drafter", ["none", "device", "device right", "device ragged"])
def test_18_most_rounds_run_ahead_with_one_read_each(drafter: str) -> None:
    stats = run(AHEAD, telling(), DRAFTERS[drafter](), lambda engine: engine.stats())
    assert stats.ahead_rounds > 0.6 * stats.rounds  # type: ignore[attr-defined]
    assert stats.host_reads == stats.rounds == stats.device_rounds  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["none", "device", "device right"])
@pytest.mark.parametrize("place", range(1, 10))
def test_18_a_consumer_that_stops_drops_its_part_of_the_round_in_flight(drafter: str, place: int) -> None:
    for behaviour in (Behaviour(place), Behaviour(None, place), Behaviour(None, None, place)):
        assert problems(AHEAD, telling(behaviour), DRAFTERS[drafter]()) == []
    stats = run(AHEAD, telling(Behaviour(place)), DRAFTERS[drafter](), lambda engine: engine.stats())
    assert stats.dropped_positions > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["none", "device", "device right"])
@pytest.mark.parametrize("turn", range(1, 12))
def test_19_a_flush_at_any_moment_changes_nothing(drafter: str, turn: int) -> None:
    with open_engine(TOY, DECODER.eos_ids, AHEAD, DRAFTERS[drafter]()) as engine:
        turns = iter(range(1, 10_000))

        def flush(scheduler: Scheduler) -> None:
            if next(turns) % turn == 0 and scheduler._group is not None:
                scheduler._group.flush()
                scheduler._notify()

        found = watch_steps(engine, flush)
        jobs = telling()
        served = run_jobs(engine, jobs, timeout=20)
        assert found == []
        assert compare(jobs, DECODER, served) + leftovers(engine) == []


@pytest.mark.parametrize("drafter", ["none", "device", "device right", "device ragged"])
def test_9_after_a_flush_host_and_device_agree(drafter: str) -> None:
    """Columns, mirror and drafter coverage, after every turn once nothing is in flight."""

    def check(scheduler: Scheduler) -> None:
        group = scheduler._group
        if group is None:
            return
        group.flush()
        scheduler._notify()
        tables = group.parts.tables
        for row in scheduler.rows:
            columns = [int(getattr(tables, name)[row.index]) for name in ("pending", "length", "step", "remaining")]
            assert columns == [row.pending, row.length, row.step, row.remaining], row.request.id
            known = tables.history[row.index, : len(row.tokens)].tolist()
            assert known == row.tokens
            if group.drafter.on_device:
                assert int(tables.draft_length[row.index]) == row.length, "a commit was missed"

    with open_engine(TOY, DECODER.eos_ids, AHEAD, DRAFTERS[drafter]()) as engine:
        found = watch_steps(engine, check)
        run_jobs(engine, telling(), timeout=20)
        assert found == []


def test_18_catches_a_round_that_is_delivered_to_rows_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.group.SpeculativeGroup.is_member", lambda self, row: True)
    assert problems(AHEAD, telling(Behaviour(3)), DRAFTERS["none"]()) != []


def test_18_catches_a_round_in_flight_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module.Flight, "advances", lambda self, row: 0)
    assert problems(replace(AHEAD, depth=5, chunk=64), telling(), DRAFTERS["device right"]()) != []


# -- the gate in the engine ------------------------------------------------------------------------------------------


def observed(monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """What the gate is told."""
    from paceline.gate.adaptive import AdaptiveGate

    told: list[Evidence] = []
    original = AdaptiveGate.observe

    def observe(self: AdaptiveGate, entries: list[Evidence]) -> None:
        told.extend(entries)
        original(self, entries)

    monkeypatch.setattr(AdaptiveGate, "observe", observe)
    return told


@pytest.mark.parametrize("device_round", [True, False])
def test_28_dear_windows_close_the_gate_and_lookups_are_watched_for_free(
    device_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = observed(monkeypatch)
    setup = replace(AHEAD, device_round=device_round, costs=costs(5.0))
    stats = run(setup, telling(), NgramDrafter(), lambda engine: engine.stats())
    assert stats.num_drafts == 0  # type: ignore[attr-defined]
    assert told, "plain rounds are compared with what would have been proposed"
    assert all(0 <= entry.accepted <= entry.drafted for entry in told)


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("drafter", ["device right", "ngram"])
def test_28_cheap_windows_open_it(drafter: str, device_round: bool) -> None:
    setup = replace(AHEAD, device_round=device_round, costs=costs(0.0))
    stats = run(setup, telling(), DRAFTERS[drafter](), lambda engine: engine.stats())
    assert stats.num_drafts > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["device", "ngram"])
def test_s47_what_a_request_drafts_does_not_depend_on_the_one_before(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A, B, A: the group runs empty in between, and a gate that ran empty starts afresh (spec 11.7)."""
    monkeypatch.setattr("paceline.engine.planning.Planner.correct", lambda self, costs: None)  # times are not equal
    first, other = (Job(name, make_prompt(n, 12, DECODER.vocab_size), greedy(60)) for n, name in ((0, "A"), (7, "B")))

    def drafted(*, resets: bool) -> list[object]:
        if not resets:
            monkeypatch.setattr("paceline.engine.planning.Planner.reset", lambda self: None)
        setup = replace(AHEAD, rows=1, depth=5, costs=costs(0.12, 0.02))
        with open_engine(TOY, DECODER.eos_ids, setup, DRAFTERS[drafter]()) as engine:
            runs = [run_jobs(engine, [job], timeout=20)[job.name] for job in (first, other, first)]
        return [replace(run.spec, time_saved_ms=None) for run in runs]

    kept = drafted(resets=True)
    assert kept[0] == kept[2]
    if drafter == "device":
        forgotten = drafted(resets=False)
        assert forgotten[0] != forgotten[2], "teeth: without the reset the third run differs"


def test_17_probes_are_counted() -> None:
    setup = replace(AHEAD, device_round=False, depth=2, costs=costs(0.0, 0.6))
    stats = run(setup, telling(), RandomDrafter(free=False), lambda engine: engine.stats())
    assert stats.probes > 0 and stats.num_drafts + stats.plain_rounds > 0  # type: ignore[attr-defined]
