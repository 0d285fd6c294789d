"""Invariants 33 and 37, and cases S30 and POOL0: little memory changes no stream, and every block comes back.

Pools here are so small that rows give up depth and are preempted; what they went through must not show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import DECODER, DRAFTERS, TOY, behaviours, job_lists, make_drafter, setups

import paceline.engine.preemption as preemption_module
from paceline.cache.pool import BlockPool
from paceline.core.errors import IntegrityError
from paceline.core.request import SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Behaviour, Collector
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.watch import WatchedDrafter
from paceline.testing.workload import make_prompt

#: Twelve requests of 40 to 60 positions each, for pools of 96 to 160.
CROWD = tuple(
    Job(
        f"job-{n}",
        tuple((n * 7 + place) % 60 + 1 for place in range(12 + n)),
        SamplingParams(max_tokens=30 + n, temperature=0.9 * (n % 2), seed=n),
    )
    for n in range(12)
)


def check_blocks(scheduler: Scheduler) -> None:
    """Invariant 33 for blocks: every reference is a row's or the family cache's."""
    try:
        scheduler._parts.tables.check_integrity(scheduler._families.references())
    except IntegrityError as error:
        raise AssertionError(str(error)) from error


def open_small(tokens: int, drafter: str, setup: Setup, ram_bytes: int = 2 * 10**9) -> Any:
    small = replace(setup, kv_cache_tokens=tokens, preempt_ram_bytes=ram_bytes)
    return open_engine(TOY, (), small, WatchedDrafter(make_drafter(drafter, DECODER)))


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("ram_bytes", [0, 2 * 10**9], ids=["replay", "snapshot"])
@pytest.mark.parametrize("tokens", [64, 96, 160])
@pytest.mark.parametrize("drafter", ["none", "oracle", "ragged"])
def test_37_preemption_changes_no_stream(drafter: str, tokens: int, ram_bytes: int, device_round: bool) -> None:
    setup = Setup(rows=6, chunk=8, depth=3, device_round=device_round)
    with open_small(tokens, drafter, setup, ram_bytes) as engine:
        broken = watch_steps(engine, check_blocks)
        served = run_jobs(engine, CROWD)
        assert compare(CROWD, DECODER, served) == []
        assert broken == [] and leftovers(engine) == []
        assert engine.stats().preemptions >= (1 if tokens == 160 else 5), "rows really were preempted"
        assert engine._scheduler._ram.used == 0


@given(setups(), job_lists(), st.sampled_from(DRAFTERS), st.sampled_from([64, 80, 112]), st.booleans())
@settings(max_examples=40)
def test_37_preemption_beside_leaving_consumers(
    setup: Setup, jobs: tuple[Job, ...], drafter: str, tokens: int, in_ram: bool
) -> None:
    with open_small(tokens, drafter, replace(setup, rows=5), 10**9 if in_ram else 0) as engine:
        broken = watch_steps(engine, check_blocks)
        served = run_jobs(engine, jobs, timeout=20)
        assert compare(jobs, DECODER, served) == []
        assert broken == [] and leftovers(engine) == []


@pytest.mark.parametrize("fault", ["a cell is lost", "one input too few"])
def test_37_catches_a_restore_that_is_not_exact(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = preemption_module.restore_state

    def restore(parts, preempted):  # type: ignore[no-untyped-def]
        original(parts, preempted)
        if fault == "a cell is lost":
            block = parts.tables.blocks(preempted.row.index, "full")[0]
            parts.tables.store.keys(0)[block * parts.tables.block_size] = 0
        else:
            preempted.row.length -= 1
            parts.tables.write_row(preempted.row)

    monkeypatch.setattr("paceline.engine.preparation.restore_state", restore)
    with open_small(96, "none", Setup(rows=6)) as engine:
        assert compare(CROWD, DECODER, run_jobs(engine, CROWD))


def test_37_aborts_of_preempted_rows_end_once() -> None:
    with open_small(96, "ragged", Setup(rows=6)) as engine:

        def abort_preempted(scheduler: Scheduler) -> None:
            for entry in list(scheduler._preempted)[:1]:
                engine.abort(entry.row.request.id, "enough")

        watch_steps(engine, abort_preempted)
        served = run_jobs(engine, CROWD)
        assert {got.reason for got in served.values()} >= {"abort"}
        assert all(got.problems == [] for got in served.values())
        left = [job for job in CROWD if served[job.name].reason != "abort"]
        assert compare(left, DECODER, served) == []
        assert leftovers(engine) == [] and engine._scheduler._ram.used == 0


@pytest.mark.parametrize("method", ["release", "retain"])
def test_33_catches_a_reference_that_is_forgotten(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(BlockPool, method)
    monkeypatch.setattr(BlockPool, method, lambda self, blocks: original(self, list(blocks)[1:]))
    with open_small(256, "none", Setup(rows=3, chunk=16)) as engine:
        broken = watch_steps(engine, check_blocks)
        collectors = [Collector() for _ in range(3)]
        samples(engine, collectors)
        wait_all(collectors)
        with pytest.raises(IntegrityError):
            leftovers(engine)
    assert broken


# -- samples of one prompt -------------------------------------------------------------------------------------------

PROMPT = tuple(range(1, 41))
SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, seed=5)


def samples(engine: Engine, collectors: list[Collector], name: str = "family") -> list[Job]:
    """Submit one sample per collector; the jobs that plain decoding compares them with."""
    names = engine.add_samples(PROMPT, SAMPLED, collectors, name)
    return [
        Job(sample, PROMPT, replace(SAMPLED, seed=5 + place), collectors[place].behaviour)
        for place, sample in enumerate(names)
    ]


def wait_all(collectors: list[Collector]) -> None:
    for got in collectors:
        got.wait(5)


@pytest.mark.parametrize("tokens", [64, 80, 96, 128, 512])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("drafter", ["none", "oracle"])
def test_33_samples_share_a_prompt_and_give_it_back(count: int, tokens: int, drafter: str) -> None:
    with open_small(tokens, drafter, Setup(rows=4, chunk=16)) as engine:
        broken = watch_steps(engine, check_blocks)
        collectors = [Collector() for _ in range(count)]
        jobs = samples(engine, collectors)
        wait_all(collectors)
        assert compare(jobs, DECODER, {job.name: got for job, got in zip(jobs, collectors, strict=True)}) == []
        assert broken == [] and leftovers(engine) == []
        assert not engine._scheduler._families._entries


BEHAVIOURS = [
    [Behaviour(abort_after=1), Behaviour(), Behaviour()],
    [Behaviour(stop_after=1), Behaviour(), Behaviour()],
    [Behaviour(raise_after=2), Behaviour(raise_after=1), Behaviour()],
    [Behaviour(), Behaviour(abort_after=3), Behaviour(stop_after=2)],
    [Behaviour(abort_after=2), Behaviour(abort_after=1), Behaviour(abort_after=3)],
]


@pytest.mark.parametrize("ways", BEHAVIOURS)
@pytest.mark.parametrize("rows", [1, 3])
def test_33_leaving_samples_leave_their_siblings_alone(ways: list[Behaviour], rows: int) -> None:
    with open_small(256, "ragged", Setup(rows=rows, chunk=16)) as engine:
        broken = watch_steps(engine, check_blocks)
        collectors = [Collector(way) for way in ways]
        jobs = samples(engine, collectors)
        wait_all(collectors)
        assert compare(jobs, DECODER, {job.name: got for job, got in zip(jobs, collectors, strict=True)}) == []
        assert broken == [] and leftovers(engine) == []


@pytest.mark.parametrize("doomed", [("family",), ("family/1",), ("family", "family/1"), ("family/2", "family/1")])
@pytest.mark.parametrize("turn", range(8))
def test_33_samples_aborted_at_any_turn(doomed: tuple[str, ...], turn: int) -> None:
    turns = iter(range(10**6))
    with open_small(256, "none", Setup(rows=3, chunk=16)) as engine:

        def abort_now(scheduler: Scheduler) -> None:
            check_blocks(scheduler)
            if next(turns) == turn:
                for name in doomed:
                    engine.abort(name, "enough")

        broken = watch_steps(engine, abort_now)
        collectors = [Collector() for _ in range(3)]
        jobs = samples(engine, collectors)
        wait_all(collectors)
        served = {job.name: got for job, got in zip(jobs, collectors, strict=True)}
        untouched = [job for job in jobs if job.name not in doomed]
        assert compare(untouched, DECODER, served) == []
        assert all(served[name].reason == "abort" and served[name].problems == [] for name in doomed)
        assert broken == [] and leftovers(engine) == []


@st.composite
def families(draw: st.DrawFn) -> list[tuple[tuple[int, ...], SamplingParams, list[Behaviour]]]:
    """Several prompts with one to four samples each, some of whose consumers leave early."""
    chosen = []
    for number in range(draw(st.integers(1, 4))):
        prompt = make_prompt(number, draw(st.integers(1, 45)), DECODER.vocab_size)
        params = SamplingParams(max_tokens=draw(st.integers(1, 16)), temperature=0.8, seed=100 * number)
        chosen.append((prompt, params, draw(st.lists(behaviours(), min_size=1, max_size=4))))
    return chosen


@given(families(), setups(), st.sampled_from([64, 96, 256]), st.booleans(), st.sampled_from(["none", "ragged"]))
@settings(max_examples=60)
def test_33_families_in_little_memory(
    chosen: list[tuple[tuple[int, ...], SamplingParams, list[Behaviour]]],
    setup: Setup,
    tokens: int,
    in_ram: bool,
    drafter: str,
) -> None:
    with open_small(tokens, drafter, setup, 10**9 if in_ram else 0) as engine:
        broken = watch_steps(engine, check_blocks)
        jobs, served = [], {}
        for number, (prompt, params, ways) in enumerate(chosen):
            collectors = [Collector(way) for way in ways]
            names = engine.add_samples(prompt, params, collectors, f"family-{number}")
            for place, (name, got) in enumerate(zip(names, collectors, strict=True)):
                seeded = replace(params, seed=100 * number + place)
                jobs.append(Job(name, prompt, seeded, got.behaviour))
                served[name] = got
        wait_all(list(served.values()))
        assert compare(jobs, DECODER, served) == []
        assert broken == [] and leftovers(engine) == []
