"""S50: acceptance and usage figures count what was emitted; a drafter that only costs is left alone, and counted."""

from __future__ import annotations

import pytest
from tests.support.scenarios import DECODER, TOY, greedy, serve

from paceline.core.request import SamplingParams
from paceline.core.stats import SpecStats
from paceline.draft.base import DraftProvider
from paceline.testing.drafters import DeviceOracleDrafter, RandomDrafter, ScriptedDrafter, another_id
from paceline.testing.grid import COSTS
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.workload import make_prompt

ORDERS = {"host": (False, False), "device": (True, False), "ahead": (True, True)}


def scripted(job: Job, accepts: tuple[int, ...], depth: int) -> list[list[int]]:
    """Proposals of which the target takes so many, round by round; the text behind its end is the end again."""
    draws = DECODER.run(job.prompt, job.params).draws
    rounds, place = [], 1
    for count in accepts:
        truth = [*draws[place:], *[draws[-1]] * depth][:depth]
        if count < depth:
            truth[count] = another_id(truth[count], DECODER.vocab_size)
        rounds.append(truth)
        place += count + 1
    return rounds


def ending_job(place: int) -> Job:
    """A request that ends by a stop id as draw number ``place``, which is new there."""
    for seed in range(200):
        job = Job("job", make_prompt(seed, 9, DECODER.vocab_size), SamplingParams(max_tokens=60, seed=seed))
        tokens = DECODER.run(job.prompt, job.params).tokens
        if tokens[place] not in tokens[:place]:
            return Job("job", job.prompt, SamplingParams(max_tokens=60, seed=seed, stop_token_ids=(tokens[place],)))
    raise AssertionError("no text has a new token there")


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_s50a_known_accepts_and_an_end_inside_a_burst(order: str) -> None:
    """One token of the prefill, then bursts of 5, 1 and 3, then three right proposals and the EOS in the place of the
    fourth: 13 tokens and the EOS."""
    device_round, run_ahead = ORDERS[order]
    job = ending_job(1 + 5 + 1 + 3 + 3)
    drafter = ScriptedDrafter(scripted(job, (4, 0, 2, 4), 4), free=False)
    served = serve(Setup(rows=1, device_round=device_round, run_ahead=run_ahead), (job,), drafter)["job"]
    spec = served.spec
    assert spec.acceptance_lengths == [4, 0, 2, 3]
    assert (spec.drafted, spec.accepted, spec.rounds, spec.plain_rounds) == (16, 9, 4, 0)
    assert served.bursts == [1, 5, 1, 3, 3] and served.reason == "stop"
    assert served.generated == len(served.tokens) + 1 == 14, "usage counts the EOS, nothing behind it"
    assert spec.tokens_per_forward == pytest.approx((served.generated - 0) / 4)
    assert spec.accepted <= spec.drafted and spec.forwards == 4


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_s50a_figures_of_requests_cut_by_their_budget_or_their_consumer(order: str) -> None:
    device_round, run_ahead = ORDERS[order]
    setup = Setup(rows=4, device_round=device_round, run_ahead=run_ahead)
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 8, 64), greedy(2 + 3 * n)) for n in range(7))
    with open_engine(TOY, (), setup, DeviceOracleDrafter(DECODER.recorded, wrong_every=3)) as engine:
        served = run_jobs(engine, jobs, timeout=20)
        stats = engine.stats()
    assert sum(len(got.tokens) for got in served.values()) == stats.generation_tokens
    assert stats.num_accepted_tokens <= stats.num_draft_tokens
    for got in served.values():
        got.spec.check()
        emitted = len(got.tokens) - 1  # the first token is the prefill's
        assert emitted == sum(got.bursts[1:]) <= got.spec.accepted + got.spec.rounds + got.spec.plain_rounds


def test_s50a_without_a_draft_all_figures_are_zero() -> None:
    spec = SpecStats()
    spec.check()
    assert (spec.tokens_per_forward, spec.forwards_saved, spec.rejected, spec.forwards) == (0.0, 0, 0, 0)
    served = serve(Setup(rows=1, device_round=True), (Job("one", (5,), greedy(1)),))["one"]
    assert (served.spec.tokens_per_forward, served.spec.forwards_saved) == (0.0, 0)


BAD = {
    "host": lambda: RandomDrafter(),
    "host, not free": lambda: RandomDrafter(free=False),
    "device": lambda: DeviceOracleDrafter(lambda request: [1] * 256, wrong_every=1),
}


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("bad", sorted(BAD))
def test_s50b_a_drafter_that_is_never_right_is_hardly_asked(bad: str, order: str) -> None:
    """32 requests at once: the gate ends drafting, plain rounds are counted, and the text is the same."""
    device_round, run_ahead = ORDERS[order]
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 8, 64), greedy(60)) for n in range(32))
    setup = Setup(rows=32, depth=4, device_round=device_round, run_ahead=run_ahead, costs=COSTS["fair"])
    drafter: DraftProvider = BAD[bad]()
    with open_engine(TOY, (), setup, drafter) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, DECODER, served) + leftovers(engine) == []
        stats = engine.stats()
    pinned = 32 * 59  # row rounds in which a pinned depth would have drafted
    assert stats.num_drafts < 0.2 * pinned, f"{stats.num_drafts} draft rounds of {pinned}"
    assert stats.plain_rounds > 0.8 * pinned and stats.depth_histogram[0] == stats.plain_rounds
    assert stats.drafter_failures == 0 and stats.num_accepted_tokens <= stats.num_draft_tokens


def test_s50b_time_saved_adds_up_over_the_requests() -> None:
    """The engine's estimate is the sum of what its requests were told."""
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 8, 64), greedy(90)) for n in range(8))
    with open_engine(TOY, (), Setup(rows=8, depth=4, device_round=True, costs=COSTS["cheap"]), RandomDrafter()) as it:
        served = run_jobs(it, jobs)
        stats = it.stats()
    total = sum(got.spec.time_saved_ms or 0.0 for got in served.values())
    assert stats.time_saved_ms == pytest.approx(total)
