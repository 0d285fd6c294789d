"""S32: requests cancelled or left at any token, twice, or under a wrong id, end once and give everything back."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.support.tiny import FAMILY, decoder, drafter, engine_over, greedy, prompts

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Behaviour, Collector
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs, watch_steps
from paceline.testing.models import tiny_model

COUNT, LIMIT = 300, 12


def leaving_jobs() -> list[Job]:
    """Requests whose consumer leaves after a random number of tokens, the last one included, in two ways."""
    chance = random.Random(5)
    jobs = []
    for n, prompt in enumerate(prompts(30) * (COUNT // 30)):
        place = chance.randint(1, LIMIT)
        way = Behaviour(abort_after=place) if n % 2 else Behaviour(stop_after=place)
        jobs.append(Job(f"job-{n}", prompt, greedy(LIMIT), way if n % 5 else Behaviour()))
    return jobs


@pytest.mark.parametrize("name", ["none", "D-self", "D-lookup"])
def test_s32_three_hundred_requests_left_at_any_token(name: str) -> None:
    jobs = leaving_jobs()
    with engine_over(Setup(rows=8), drafter(name)) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) == []
        assert leftovers(engine) == []
        assert engine.info()["num_requests_running"] == engine.info()["num_requests_waiting"] == 0
        fresh = [Job("fresh", (9, 8, 7), greedy(12))]
        assert compare(fresh, decoder(), run_jobs(engine, fresh)) == []


@pytest.mark.parametrize("name", ["none", "device"])
@pytest.mark.parametrize("memory", [None, 96])
def test_s32_three_hundred_requests_left_while_rounds_run_ahead(name: str, memory: int | None) -> None:
    jobs = leaving_jobs()
    provider = None if name == "none" else DeviceOracleDrafter(decoder().recorded, wrong_every=5)
    with engine_over(Setup(rows=8, device_round=True, kv_cache_tokens=memory), provider) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) + leftovers(engine) == []
        stats = engine.stats()
        assert stats.ahead_rounds > 100 and stats.dropped_positions > 50
        assert sum(stats.finished.values()) == COUNT and stats.drafter_failures == 0


@pytest.mark.parametrize("name", ["none", "device"])
@pytest.mark.parametrize("turn", range(2, 14))
def test_s32_an_abort_between_any_two_turns_ends_one_request_once(name: str, turn: int) -> None:
    """The round in flight names the row: its part is dropped, the other rows go on."""
    provider = None if name == "none" else DeviceOracleDrafter(decoder().recorded, wrong_every=5)
    jobs = [Job(f"job-{n}", prompt, greedy(30, ignore_eos=True)) for n, prompt in enumerate(prompts(3))]
    with engine_over(Setup(rows=3, chunk=16, depth=2, device_round=True), provider, ()) as engine:
        turns = iter(range(1, 10_000))
        aborted: list[bool] = []

        def abort(scheduler: Scheduler) -> None:
            # the first turns may come before the request has been queued
            if next(turns) >= turn and not aborted and engine.abort("job-1", "enough"):
                aborted.append(engine.abort("job-1", "again"))

        watch_steps(engine, abort)
        served = run_jobs(engine, jobs)
        assert aborted == [True]
        gone = served.pop("job-1")
        assert compare([jobs[0], jobs[2]], decoder(), served) + leftovers(engine) == []
        assert gone.reason == "abort" and "enough" in str(gone.finished) and gone.problems == []
        assert tuple(gone.tokens) == decoder().run(jobs[1].prompt, jobs[1].params).tokens[: len(gone.tokens)]
        assert gone.length == len(gone.text or ()) - 1 or not gone.tokens, "nothing of the round in flight is counted"


def test_s32_aborting_twice_late_or_under_a_wrong_id_is_no_error() -> None:
    with engine_over(Setup(rows=2), drafter("D-lookup")) as engine:
        assert engine.abort("never heard of") is False
        got = Collector()
        engine.add_request((5, 6), greedy(500, ignore_eos=True), got, "long")
        while not got.tokens:
            time.sleep(0.001)
        assert engine.abort("long", "first reason") is True
        engine.abort("long", "second reason")
        got.wait()
        assert got.reason == "abort" and "first reason" in str(got.finished)
        assert engine.abort("long") is False
        assert got.problems == [] and len(got.tokens) < 500
        assert leftovers(engine) == []


@pytest.mark.parametrize("when", ["before it is admitted", "in prefill"])
def test_s32_aborting_before_the_first_token(when: str) -> None:
    with engine_over(Setup(rows=1, chunk=1), drafter("D-lookup")) as engine:
        blocker, got = Collector(), Collector()
        if when == "before it is admitted":
            engine.add_request((5, 6), greedy(60), blocker, "blocker")
        else:
            blocker.give_up()
        engine.add_request(tuple(range(4, 200)), greedy(60), got, "doomed")
        assert engine.abort("doomed", "enough") is True
        got.wait()
        blocker.wait()
        assert (got.reason, got.tokens, got.problems) == ("abort", [], [])
        assert leftovers(engine) == []


def test_s32_streams_closed_by_their_readers() -> None:
    chance = random.Random(2)

    async def read(llm: AsyncLLM, prompt: tuple[int, ...], most: int) -> int:
        seen = 0
        stream = llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=LIMIT, ignore_eos=True))
        async for delta in stream:
            seen += len(delta.token_ids)
            if seen >= most:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        return seen

    async def everything(llm: AsyncLLM) -> list[int]:
        readers = [read(llm, prompt, chance.randint(0, LIMIT)) for prompt in prompts(60)]
        return await asyncio.gather(*readers)

    llm = AsyncLLM(str(tiny_model(FAMILY)), dtype="float64", device="cpu", spec_method="ngram", max_num_seqs=4)
    try:
        seen = asyncio.run(everything(llm))
        assert all(0 < count <= LIMIT for count in seen)
        deadline = time.monotonic() + 10
        while llm.engine.info()["num_requests_running"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert leftovers(llm.engine) == []  # type: ignore[arg-type]
    finally:
        llm.close()


def test_s32_a_closed_engine_ends_what_is_in_flight() -> None:
    llm = LLM(str(tiny_model(FAMILY)), dtype="float64", device="cpu", spec_method="none", max_num_seqs=2)
    collectors = [Collector() for _ in range(5)]
    for n, got in enumerate(collectors):
        llm.engine.add_request((5 + n, 6), greedy(500, ignore_eos=True), got)
    llm.close()
    assert all(got.wait(5).reason == "error" and got.problems == [] for got in collectors)
