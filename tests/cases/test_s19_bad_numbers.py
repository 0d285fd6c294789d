"""S19: numbers out of range are refused at the door, by the name of their field; running requests notice nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tiny import decoder, drafter, engine_over, greedy, jobs_of, prompts

from paceline.core.errors import RequestError
from paceline.core.request import SamplingParams
from paceline.engine.engine import Engine
from paceline.testing.collect import Collector
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs

NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[str, Any]] = [
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_p", NAN),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("temperature", -1),
    ("temperature", NAN),
    ("temperature", INF),
    ("temperature", "hot"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**7),
    ("seed", -1),
    ("seed", 2**64),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [10**6]),
    ("num_draft_tokens", -1),
    ("logprobs", -2),
    ("logprobs", 10**6),
    ("prompt_logprobs", 10**6),
    ("logit_bias", {320: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"x": 1.0}),
    ("logit_bias", {5: NAN}),
    ("logit_bias", dict.fromkeys(range(5000), 1.0)),
    ("repetition_penalty", 0),
    ("frequency_penalty", 3.0),
    ("min_tokens", -1),
    ("n", 0),
]
#: Fields of other engines: refused by name, not ignored.
UNKNOWN: list[tuple[str, Any]] = [("top_logprobs", 10**6), ("mirostat", 2)]
#: Allowed, and the same as no filter at all: -1 and 0 mean off, and nothing lies above the vocabulary.
NO_FILTER = [0, -1, 10**7]


def submit(engine: Engine, field: str, value: Any) -> None:
    params = SamplingParams(**{"max_tokens": 4, field: value})
    engine.add_request((5, 6, 7), params, Collector())


def test_s19_refused_numbers_name_their_field_and_disturb_nobody() -> None:
    jobs = jobs_of(prompts(4), greedy(120))
    refused: list[str] = []

    def send_bad(count: int) -> None:
        """Runs on the engine thread with each burst of the first request."""
        for field, value in REFUSED:
            with pytest.raises(RequestError) as caught:
                submit(engine, field, value)
            assert caught.value.field == field and field in str(caught.value)
            refused.append(field)

    with engine_over(Setup(rows=4), drafter("D-lookup")) as engine:
        collectors = {job.name: Collector() for job in jobs}
        collectors[jobs[0].name].watch = send_bad
        for job in jobs:
            engine.add_request(job.prompt, job.params, collectors[job.name], job.name)
        for got in collectors.values():
            got.wait()
        assert compare(jobs, decoder(), collectors) == []
        assert len(refused) > 100
        fresh = [Job("fresh", (9, 8, 7), greedy(12))]
        assert compare(fresh, decoder(), run_jobs(engine, fresh)) == []
        assert leftovers(engine) == []


@pytest.mark.parametrize(("field", "value"), UNKNOWN)
def test_s19_options_that_do_not_exist_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises((TypeError, RequestError), match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("name", ["none", "D-lookup"])
@pytest.mark.parametrize("top_k", [*NO_FILTER, "vocabulary", "one above"])
def test_s19_a_top_k_beyond_the_vocabulary_filters_nothing(top_k: Any, name: str) -> None:
    size = decoder().vocab_size
    count = {"vocabulary": size, "one above": size + 1}.get(top_k, top_k)
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=3, top_k=count)
    jobs = jobs_of(prompts(3), params)
    with engine_over(Setup(rows=3), drafter(name)) as engine:
        served = run_jobs(engine, jobs)
    assert compare(jobs, decoder(), served) == []
    unfiltered = SamplingParams(max_tokens=24, temperature=1.0, seed=3)
    assert [tuple(served[job.name].tokens) for job in jobs] == [
        decoder().run(job.prompt, unfiltered).tokens for job in jobs
    ]


@pytest.mark.parametrize("token", [-1, 320, 10**9, True, 1.0, "5"])
def test_s19_prompt_ids_outside_the_vocabulary_are_refused(token: Any) -> None:
    with engine_over(Setup(rows=1), None) as engine, pytest.raises(RequestError, match="prompt"):
        engine.add_request((5, token), greedy(4), Collector())
