"""S03: a seed decides its request's tokens, whoever shares the batch; unseeded rows do not disturb seeded ones."""

from __future__ import annotations

import random

import pytest
from tests.support.tiny import decoder, drafter, prompts, serve

from paceline.core.request import SamplingParams
from paceline.testing.harness import Job, Setup, compare

NAMES = ["none", "D-self", "D-bad", "D-lookup"]


@pytest.mark.parametrize("name", NAMES)
def test_s03_five_runs_of_one_seed_are_one_run(name: str) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.9, seed=7)
    jobs = [Job("job", prompts(1)[0], params)]
    runs = [serve(Setup(rows=1), jobs, drafter(name))["job"].tokens for _ in range(5)]
    assert runs == [list(decoder().run(jobs[0].prompt, params).tokens)] * 5


@pytest.mark.parametrize("temperatures", [(0.8,) * 6, (0.8, 0.0, 0.8, 0.8, 0.8, 0.0)])
@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_s03_seeded_and_unseeded_rows_share_a_batch(name: str, order: int, temperatures: tuple[float, ...]) -> None:
    seeds = (7, None, 9, None, 7, None)
    prompt = prompts(2)[1]
    jobs = [
        Job(f"row-{n}", prompt, SamplingParams(max_tokens=24, temperature=t, top_p=0.9, seed=seed))
        for n, (seed, t) in enumerate(zip(seeds, temperatures, strict=True))
    ]
    random.Random(order).shuffle(jobs)
    served = serve(Setup(rows=6), jobs, drafter(name))
    known = [job for job in jobs if job.params.seed is not None or job.params.greedy]
    assert compare(known, decoder(), served) == []
    assert served["row-0"].tokens == served["row-4"].tokens
    assert all(got.reason in ("stop", "length") and got.problems == [] for got in served.values())


def test_s03_requests_without_a_seed_differ() -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0)
    jobs = [Job(f"row-{n}", prompts(1)[0], params) for n in range(4)]
    served = serve(Setup(rows=4), jobs, drafter("D-lookup"))
    assert len({tuple(got.tokens) for got in served.values()}) == 4
