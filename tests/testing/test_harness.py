"""The harness: jobs join when told, consumers leave as told, every departure from plain decoding is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core.request import SamplingParams
from paceline.core.row import Finished
from paceline.testing.collect import ENDED, Behaviour, Collector
from paceline.testing.harness import Job, Setup, compare, differences, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.toy import ToyTarget
from paceline.testing.workload import JOBS_PER_BATCH, SAMPLINGS, script_for, workload

TOY = ToyTarget()
DECODER = TOY.decoder()


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def served(job: Job) -> Collector:
    with open_engine(TOY, (), Setup()) as engine:
        return run_jobs(engine, [job])[job.name]


JOB = Job("job", (1, 2, 3), greedy(9))
RUN = DECODER.run(JOB.prompt, JOB.params)


def test_a_sound_run_has_no_differences() -> None:
    assert differences(JOB, RUN, served(JOB)) == []


@pytest.mark.parametrize(
    ("behaviour", "reason", "count"),
    [
        (Behaviour(stop_after=4), "stop", 4),
        (Behaviour(stop_after=9), "stop", 9),
        (Behaviour(stop_after=99), "length", 9),
        (Behaviour(raise_after=4), "error", 4),
        (Behaviour(abort_after=4), "abort", 4),
        (Behaviour(abort_after=99), "length", 9),
    ],
)
def test_consumers_leave_as_told(behaviour: Behaviour, reason: str, count: int) -> None:
    job = replace(JOB, behaviour=behaviour)
    got = served(job)
    assert (got.reason, len(got.tokens), got.generated) == (reason, count, count)
    assert differences(job, RUN, got) == []


@pytest.mark.parametrize("fault", ["token", "missing", "more", "reason", "generated", "statistics", "problem"])
def test_every_departure_is_named(fault: str) -> None:
    got = served(JOB)
    if fault == "token":
        got.tokens[3] += 1
    elif fault == "missing":
        got.tokens.pop()
    elif fault == "more":
        got.tokens.append(1)
    elif fault == "reason":
        got.finished = Finished("stop")
    elif fault == "generated":
        got.generated += 1
    elif fault == "statistics":
        got.spec.plain_rounds += 1
    else:
        got.problems.append("foul")
    assert differences(JOB, RUN, got)


def test_jobs_join_after_tokens_or_the_end_of_others() -> None:
    order: list[str] = []
    jobs = [
        Job("first", (1,), greedy(12)),
        Job("second", (2,), greedy(2), after=("first", 5)),
        Job("third", (3,), greedy(2), after=("second", ENDED)),
        Job("fourth", (4,), greedy(2), after=("first", ENDED)),
    ]
    with open_engine(TOY, (), Setup()) as engine:

        def note(scheduler: object) -> None:
            for name in engine._live:
                if name not in order:
                    order.append(name)

        watch_steps(engine, note)
        assert compare(jobs, DECODER, run_jobs(engine, jobs)) == []
    assert order.index("first") < order.index("second") < order.index("third")


def test_a_late_submission_that_is_refused_is_raised() -> None:
    jobs = [Job("first", (1,), greedy(4)), Job("bad", (1,), greedy(10**6), after=("first", 1))]
    with open_engine(TOY, (), Setup()) as engine, pytest.raises(Exception, match="max_tokens"):
        run_jobs(engine, jobs)


def test_leftovers_name_what_is_held() -> None:
    with open_engine(TOY, (), Setup()) as engine:
        assert leftovers(engine) == []
        tables = engine._scheduler._parts.tables
        index = tables.acquire_index()
        assert index is not None
        tables.reserve(index, 20)
        assert leftovers(engine) == ["2 blocks of group full are still held", "1 row indices are still held"]
        tables.release(index)
        tables.release_index(index)


def test_a_hanging_request_is_a_timeout_not_a_hang() -> None:
    with pytest.raises(TimeoutError, match="0 tokens"):
        Collector().wait(0.01)


def test_tokens_after_the_end_and_a_second_end_are_noted() -> None:
    got = Collector()
    got.finish(None, Finished("abort"))
    got.finish(None, Finished("abort"))
    assert got.problems == ["finish was called twice"]


@pytest.mark.parametrize("batch", JOBS_PER_BATCH)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_workload_has_more_requests_than_rows_and_repeats(batch: int, sampling: str) -> None:
    jobs = workload(batch, sampling, DECODER)
    assert len(jobs) > batch
    assert jobs == workload(batch, sampling, DECODER)
    assert len({job.prompt for job in jobs}) == len(jobs)
    reasons = {DECODER.run(job.prompt, job.params).finish_reason for job in jobs}
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("device_round", [True, False])
def test_a_script_gives_the_acceptance_it_was_written_for(depth: int, device_round: bool) -> None:
    from paceline.testing.drafters import ScriptedDrafter

    params = greedy(30)
    run = DECODER.run((1, 2, 3), params)
    drafter = ScriptedDrafter(script_for(run, depth, (4, 0, 2), DECODER.vocab_size))
    with open_engine(TOY, (), Setup(depth=depth, device_round=device_round), drafter) as engine:
        got = run_jobs(engine, [Job("job", (1, 2, 3), params)])["job"]
    full = [min(accept, depth) for accept in (4, 0, 2) * 10]
    count = len(got.spec.acceptance_lengths)
    assert got.spec.acceptance_lengths[: count - 1] == full[: count - 1]
    assert list(got.tokens) == list(run.tokens)
