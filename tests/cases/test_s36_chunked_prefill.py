"""S36: how a prompt is cut into chunks changes neither tokens nor acceptance, and nothing is drafted before its end."""

from __future__ import annotations

import functools

import pytest
from tests.support.tiny import decoder, drafter, engine_over, greedy

from paceline.testing.collect import Collector
from paceline.testing.harness import Job, Setup, compare, run_jobs
from paceline.testing.watch import WatchedDrafter

#: Ten chunks of 64 and one token more, made of a repeated phrase so that lookup finds something.
PROMPT = tuple((7 * (place % 40)) % 300 + 4 for place in range(641))
CHUNKS = (1, 7, 64, 1024)


@functools.cache
def run(name: str, chunk: int) -> tuple[Collector, WatchedDrafter]:
    inner = drafter(name)
    assert inner is not None
    watched = WatchedDrafter(inner)
    jobs = [Job("job", PROMPT, greedy(50, ignore_eos=True)), Job("other", PROMPT[:20], greedy(50, ignore_eos=True))]
    with engine_over(Setup(rows=2, chunk=chunk), watched) as engine:
        served = run_jobs(engine, jobs, timeout=120)
        assert compare(jobs, decoder(), served) == []
    return served["job"], watched


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", ["D-self", "D-bad", "D-lookup"])
def test_s36_tokens_and_acceptance_do_not_depend_on_the_chunk(name: str, chunk: int) -> None:
    got, watched = run(name, chunk)
    whole, _ = run(name, CHUNKS[-1])
    assert got.spec.acceptance_lengths == whole.spec.acceptance_lengths
    assert (got.spec.drafted, got.spec.accepted) == (whole.spec.drafted, whole.spec.accepted)
    assert watched.problems == [], "the prompt in order, without gaps, before the first proposal"


@pytest.mark.parametrize("chunk", CHUNKS)
def test_s36_no_proposal_before_the_last_chunk(chunk: int) -> None:
    _, watched = run("D-self", chunk)
    calls = [method for method, rows in watched.events if "job" in rows]
    prefills = len(calls) - 1 - calls[::-1].index("prefill")
    assert calls.index("prepare_join") > prefills
    assert calls.index("draft") > calls.index("prepare_join")
    assert calls.count("prefill") == -(-len(PROMPT) // chunk)
