"""Invariant 27 in real engines: predictions and copied spans change no stream, finish reason or count, in any order of
rounds, beside any rows, under preemption; windows are as wide as they may be, and only after a match."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import (
    DECODER,
    TOY,
    Scenario,
    greedy,
    make_drafter,
    problems_of,
    scenarios,
    serve,
)

import paceline.engine.round as round_module
from paceline.core.request import SamplingParams
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.testing.collect import Collector
from paceline.testing.grid import target_of, truncated
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.toy import ToySpec, ToyTarget
from paceline.testing.watch import WatchedDrafter
from paceline.testing.workload import make_prompt

#: Settings of the engines below that matter to spans.
ORDERS = [
    pytest.param({"device_round": False}, id="host"),
    pytest.param({"device_round": True, "run_ahead": False}, id="device"),
    pytest.param({"device_round": True}, id="ahead"),
]


def nearly(text: Sequence[int], seed: int, edits: int) -> tuple[int, ...]:
    """``text`` with ids inserted, deleted and replaced here and there."""
    chance = random.Random(seed)
    found = list(text)
    for _ in range(edits):
        place = chance.randrange(len(found) + 1)
        fresh = [chance.randrange(1, 60) for _ in range(chance.randint(0, 3))]
        found[place : place + chance.randint(0, 3)] = fresh
    return tuple(found)


def predicting(job: Job, seed: int, edits: int, fill: bool = False) -> Job:
    """The job with a prediction that is its plain text with edits."""
    text = DECODER.run(job.prompt, job.params).tokens
    return replace(job, params=replace(job.params, prediction=nearly(text, seed, edits), fill=fill))


def long_job(name: str = "job", tokens: int = 150, seed: int = 5, **options: Any) -> Job:
    return Job(name, make_prompt(seed, 12, DECODER.vocab_size), greedy(tokens, **options))


@given(scenarios(), st.integers(0, 99), st.sampled_from([0, 1, 4]), st.booleans())
@settings(max_examples=40)
def test_predictions_are_lossless_for_every_drafter_sampling_batch_and_order(
    scenario: Scenario, seed: int, edits: int, fill: bool
) -> None:
    jobs = tuple(predicting(job, seed + n, edits, fill) if n % 3 < 2 else job for n, job in enumerate(scenario.jobs))
    predicted = replace(scenario, jobs=jobs)
    assert problems_of(predicted) == [], predicted.shown()


def crowd(edits: int = 2, tokens: int = 60) -> tuple[Job, ...]:
    """Rows with and without a prediction, greedy and sampled."""
    jobs = []
    for n in range(6):
        params = SamplingParams(max_tokens=tokens + n, temperature=0.9 * (n % 2), seed=n)
        job = Job(f"job-{n}", make_prompt(n, 10 + n, DECODER.vocab_size), params)
        jobs.append(predicting(job, n, edits, fill=n == 4) if n % 3 else job)
    return tuple(jobs)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("drafter", ["none", "oracle", "ragged"])
def test_rows_with_and_without_spans_decode_together(drafter: str, order: dict[str, Any]) -> None:
    served = serve(Setup(rows=4, chunk=5, depth=3, **order), crowd(), make_drafter(drafter, DECODER))
    assert compare(crowd(), DECODER, served) == []
    assert sum(got.fill.rounds for got in served.values()) > 0


@pytest.mark.parametrize("order", ORDERS)
def test_an_exact_prediction_takes_a_forward_for_thirty_tokens(order: dict[str, Any]) -> None:
    job = predicting(long_job(), 0, edits=0)
    served = serve(Setup(rows=1, depth=0, **order), (job,))["job"]
    assert compare((job,), DECODER, {"job": served}) == []
    assert served.spec.tokens_per_forward > 10
    fill, spec = served.fill, served.spec
    assert fill.rejected_prediction_tokens == 0
    assert 145 <= fill.accepted_prediction_tokens <= 149
    assert (spec.span_rounds, spec.rounds, spec.drafted) == (fill.rounds, 0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_rejected_is_reported(order: dict[str, Any]) -> None:
    text = DECODER.run(long_job().prompt, long_job().params).tokens
    job = long_job(prediction=(*text[:40], *[1] * 60))
    with open_engine(TOY, DECODER.eos_ids, Setup(rows=1, depth=0, **order)) as engine:
        got = run_jobs(engine, (job,))["job"]
        stats = engine.stats()
    fill = got.fill
    assert fill.rejected_prediction_tokens == fill.verified - fill.accepted > 0
    assert fill.accepted_prediction_tokens >= 36
    assert (stats.span_tokens, stats.accepted_span_tokens) == (fill.verified, fill.accepted)
    assert stats.span_rounds == fill.rounds


def test_a_request_without_speculation_has_no_spans() -> None:
    job = predicting(long_job(), 0, edits=0)
    job = replace(job, params=replace(job.params, speculative=False, fill=True))
    got = serve(Setup(rows=1, depth=4), (job,), make_drafter("oracle", DECODER))["job"]
    assert got.spec.target_calls == 150
    assert got.fill.spans == 0


def test_no_drafts_does_not_mean_no_spans() -> None:
    job = predicting(long_job(num_draft_tokens=0), 0, edits=0)
    got = serve(Setup(rows=1, depth=4), (job,), make_drafter("oracle", DECODER))["job"]
    assert (got.spec.drafted, got.spec.tokens_per_forward > 10) == (0, True)


def test_rows_beside_a_span_propose_as_without_it() -> None:
    beside = Job("beside", make_prompt(3, 9, DECODER.vocab_size), greedy(90))
    found: list[Collector] = []
    for job in (long_job(), predicting(long_job(), 1, edits=3)):
        drafter = make_drafter("wrong", DECODER)
        with open_engine(TOY, DECODER.eos_ids, Setup(rows=2, depth=3, device_round=False), drafter) as engine:
            served = run_jobs(engine, (job, beside))
            found.append(served["beside"])
    assert found[0].spec == found[1].spec
    assert found[1].spec.drafted > 0


class _Wide(ToyTarget):
    """Notes how many rows and positions each forward has."""

    def __init__(self, spec: ToySpec | None = None) -> None:
        super().__init__(spec)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, batch: Any, taps: Any = ()) -> Any:
        self.seen.append(tuple(batch.query_lens))
        return super().forward(batch, taps)


@pytest.mark.parametrize("order", ORDERS)
def test_windows_are_wide_only_after_a_match_and_within_their_bounds(order: dict[str, Any]) -> None:
    job = predicting(long_job(), 0, edits=0)
    other = Job("other", make_prompt(3, 9, DECODER.vocab_size), greedy(40))
    alone, together = _Wide(), _Wide()
    for target, jobs in ((alone, (job,)), (together, (job, other))):
        with open_engine(target, (), Setup(rows=2, depth=0, **order)) as engine:
            served = run_jobs(engine, jobs)
            assert compare(jobs, DECODER, served) == []
    widths = [lengths[0] for lengths in alone.seen if len(lengths) == 1][1:]
    assert widths[0] == 1, "the first round draws the first id of the span"
    assert max(widths) == 32
    assert 2 < max(max(lengths) for lengths in together.seen[2:] if len(lengths) == 2) <= 9


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ram_bytes", [0, 2 * 10**9], ids=["replay", "snapshot"])
def test_preempted_rows_go_on_with_their_spans(ram_bytes: int, order: dict[str, Any]) -> None:
    jobs = crowd(edits=1, tokens=40)
    setup = Setup(rows=5, chunk=8, depth=2, kv_cache_tokens=112, preempt_ram_bytes=ram_bytes, **order)
    with open_engine(TOY, (), setup) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, DECODER, served) == []
        assert leftovers(engine) == []
        assert engine.stats().preemptions > 0
    assert sum(got.fill.accepted for got in served.values()) > 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_split_tail_may_start_with_a_span(order: dict[str, Any]) -> None:
    target = ToyTarget(ToySpec(tail_split=True))
    decoder = target.decoder()
    plain = Job("job", (5, 6, 7, 8), greedy(80))
    job = replace(plain, params=replace(plain.params, prediction=decoder.run(plain.prompt, plain.params).tokens))
    with open_engine(target, (), Setup(rows=1, depth=0, **order)) as engine:
        got = run_jobs(engine, (job,))
    assert compare((job,), decoder, got) == []
    assert got["job"].fill.accepted_prediction_tokens >= 76


def test_catches_a_span_of_which_one_id_too_many_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = round_module.RoundRunner.run

    def run(self: Any, plan: Any) -> Any:
        verified = original(self, plan)
        for place, result in enumerate(verified.results):
            if result.source == "span" and result.accepted < len(result.proposals) and result.correction is not None:
                wrong = (*result.emitted[:-1], result.proposals[result.accepted])
                verified.results[place] = replace(result, emitted=wrong)
        return verified

    monkeypatch.setattr(round_module.RoundRunner, "run", run)
    job = predicting(long_job(), 1, edits=4)
    served = serve(Setup(rows=1, depth=0, device_round=False), (job,))
    assert compare((job,), DECODER, served) != []


def drafters_with_state() -> list[tuple[str, Any]]:
    return [
        ("draft model", lambda: ModelDrafter(truncated("llama"))),
        ("lookup", NgramDrafter),
        ("suffixes", SuffixDrafter),
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "make"), drafters_with_state())
def test_drafters_with_state_follow_windows_that_spans_proposed(name: str, make: Any, order: dict[str, Any]) -> None:
    target, decoder = target_of("llama")
    jobs = []
    for n, temperature in enumerate((0.0, 0.8, 0.0)):
        job = Job(f"job-{n}", make_prompt(n, 12, decoder.vocab_size), SamplingParams(max_tokens=40, seed=n))
        job = replace(job, params=replace(job.params, temperature=temperature))
        text = decoder.run(job.prompt, job.params).tokens
        jobs.append(replace(job, params=replace(job.params, prediction=nearly(text, n, 2))) if n < 2 else job)
    watched = WatchedDrafter(make())
    with open_engine(target, decoder.eos_ids, Setup(rows=3, depth=3, **order), watched) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) == []
        assert leftovers(engine) == []
        assert engine.info()["drafter_failure"] is None
    assert watched.problems == []
    assert sum(got.fill.rounds for got in served.values()) > 0
