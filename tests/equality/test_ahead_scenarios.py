"""Random scenarios for rounds that run ahead: every order, gate, span and drafter at once, in pools that are too small.

Rows join, leave, end, are preempted and are ended by their callers while a round is in flight; some rows keep the whole
batch from running ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import DECODER, TOY, job_lists, make_drafter

import paceline.engine.pipeline as pipeline_module
from paceline.core.errors import IntegrityError
from paceline.core.request import Request, SamplingParams
from paceline.core.stats import EngineStats
from paceline.draft.base import DraftProvider, NullDrafter
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.engine.scheduler import Scheduler
from paceline.engine.settlement import Settlement
from paceline.testing.collect import Collector
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.grid import COSTS
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.toy import ToySpec, ToyTarget

#: A bias that changes no draw, but takes its row off the device.
NEUTRAL = {5: 0.0}
SPLIT = ToyTarget(ToySpec(tail_split=True))


def plain(params: SamplingParams) -> SamplingParams:
    """The options that decide the tokens."""
    return replace(params, logit_bias={})


def recorded(request: Request) -> tuple[int, ...]:
    return DECODER.run(request.prompt_ids, replace(plain(request.params), seed=request.seed)).draws


DRAFTERS: dict[str, Callable[[], DraftProvider]] = {
    "none": NullDrafter,
    "device": lambda: DeviceOracleDrafter(recorded),
    "device right": lambda: DeviceOracleDrafter(recorded, wrong_every=0),
    "device ragged": lambda: DeviceOracleDrafter(recorded, wrong_every=3, ragged=True),
    "ngram": NgramDrafter,
    "ngram on the device": lambda: NgramDrafter(on_device=True),
    "suffix": SuffixDrafter,
    "random": lambda: make_drafter("random", DECODER),
}


@dataclass(frozen=True)
class Trial:
    """One engine, its requests, and what is aborted from outside: (turn of the scheduler, number of the job)."""

    setup: Setup
    jobs: tuple[Job, ...]
    drafter: str
    tail_split: bool = False
    aborts: tuple[tuple[int, int], ...] = ()


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    return Setup(
        rows=draw(st.sampled_from([1, 2, 3, 5])),
        chunk=draw(st.sampled_from([1, 5, 64])),
        depth=draw(st.integers(1, 5)),
        device_round=draw(st.sampled_from([True, True, True, False])),
        run_ahead=draw(st.sampled_from([True, True, True, False])),
        kv_cache_tokens=draw(st.sampled_from([None, 64, 96, 160])),
        preempt_ram_bytes=draw(st.sampled_from([None, 0])),
        costs=draw(st.sampled_from(list(COSTS.values()))),
        fill_span=draw(st.sampled_from([32, 32, 0])),
    )


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    jobs = []
    for job in draw(job_lists()):
        options: dict[str, object] = {}
        if draw(st.booleans()):
            text = list(DECODER.run(job.prompt, job.params).tokens)
            spoilt = draw(st.integers(0, max(0, len(text))))
            options |= {"prediction": (*text[:spoilt], 7, 9, *text[spoilt:]), "fill": draw(st.booleans())}
        kind = draw(st.integers(0, 7))
        options |= {"logit_bias": NEUTRAL} if kind == 0 else {"logprobs": 2} if kind == 1 else {}
        jobs.append(replace(job, params=replace(job.params, **options)))  # type: ignore[arg-type]
    aborts = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(0, len(jobs) - 1)), max_size=2))
    return Trial(draw(setups()), tuple(jobs), draw(st.sampled_from(sorted(DRAFTERS))), draw(st.booleans()), (*aborts,))


def problems(trial: Trial) -> list[str]:
    target = SPLIT if trial.tail_split else TOY
    with open_engine(target, DECODER.eos_ids, trial.setup, DRAFTERS[trial.drafter]()) as engine:
        turn = 0

        def watch(scheduler: Scheduler) -> None:
            nonlocal turn
            turn += 1
            for place, number in trial.aborts:
                if place == turn:
                    engine.abort(trial.jobs[number].name, "enough")
            check_blocks(scheduler)

        broken = watch_steps(engine, watch)
        served = run_jobs(engine, trial.jobs, timeout=20)
        doomed = {trial.jobs[number].name for _, number in trial.aborts}
        aborted = [job for job in trial.jobs if job.name in doomed and served[job.name].reason == "abort"]
        found = [line for job in aborted for line in not_a_beginning(job, served[job.name])]
        others = [replace(job, params=plain(job.params)) for job in trial.jobs if job not in aborted]
        found += compare(others, DECODER, served) + leftovers(engine) + broken
        stats = engine.stats()
        return found + wrong_sums(stats, list(served.values())) + ["the drafter failed"] * bool(stats.drafter_failures)


def not_a_beginning(job: Job, got: Collector) -> list[str]:
    run = DECODER.run(job.prompt, plain(job.params))
    good = tuple(got.tokens) == run.tokens[: len(got.tokens)] and not got.problems
    return [] if good else [f"{job.name} was aborted behind {got.tokens} of {run.tokens}: {got.problems}"]


def check_blocks(scheduler: Scheduler) -> None:
    try:
        scheduler._parts.tables.check_integrity(scheduler._families.references())
    except IntegrityError as error:
        raise AssertionError(str(error)) from error


def wrong_sums(stats: EngineStats, served: list[Collector]) -> list[str]:
    """Where the engine's figures are not the sums over its requests (spec 17.5)."""
    specs, fills = [got.spec for got in served], [got.fill for got in served]
    pairs = {
        "drafts": (stats.num_drafts, sum(spec.rounds for spec in specs)),
        "draft tokens": (stats.num_draft_tokens, sum(spec.drafted for spec in specs)),
        "accepted": (stats.num_accepted_tokens, sum(spec.accepted for spec in specs)),
        "accepted by place": (sum(stats.accepted_tokens_by_pos), stats.num_accepted_tokens),
        "plain rounds": (stats.plain_rounds, sum(spec.plain_rounds for spec in specs)),
        "span rounds": (stats.span_rounds, sum(spec.span_rounds for spec in specs)),
        "span rounds of the sessions": (stats.span_rounds, sum(fill.rounds for fill in fills)),
        "span tokens": (stats.span_tokens, sum(fill.verified for fill in fills)),
        "accepted span tokens": (stats.accepted_span_tokens, sum(fill.accepted for fill in fills)),
        "depths": (sum(stats.depth_histogram.values()), stats.num_drafts + stats.plain_rounds + stats.span_rounds),
        "tokens": (stats.generation_tokens, sum(len(got.tokens) for got in served)),
        "reads": (stats.host_reads, stats.rounds),
    }
    found = [f"{name}: {mine} instead of {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]
    saved = sum(spec.time_saved_ms or 0.0 for spec in specs)
    return found + [f"time saved: {stats.time_saved_ms}, {saved}"] * (abs(stats.time_saved_ms - saved) > 1e-6)


@given(trials())
@settings(max_examples=300)
def test_18_nothing_that_happens_beside_a_round_in_flight_changes_a_stream(trial: Trial) -> None:
    assert problems(trial) == [], trial


def _rows_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.group.SpeculativeGroup.is_member", lambda self, row: True)


def _one_round_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module.Flight, "advances", lambda self, row: 0)


def _launched_over_biased_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.draws.RowSampler.on_device", lambda self, rows: True)
    monkeypatch.setattr("paceline.engine.draws.RowSampler.open_row", lambda self, row: None)
    monkeypatch.setattr("paceline.engine.pipeline.wants_logprobs", lambda rows: False)
    monkeypatch.setattr("paceline.core.round.RowResult.cut_before", lambda self, ids: self)


def _one_input_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Settlement._deliver

    def deliver(self, row, result):  # type: ignore[no-untyped-def]
        outcome = right(self, row, result)
        row.length += bool(result.accepted) and outcome.kind == "continue"
        return outcome

    monkeypatch.setattr(Settlement, "_deliver", deliver)


@pytest.mark.parametrize(
    "broken",
    [
        _rows_that_left,
        _one_round_reserved,
        _launched_over_biased_rows,
        _one_input_too_many,
    ],
)
def test_18_catches(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    found: list[str] = []

    @given(trials())
    @settings(max_examples=120)
    def check(trial: Trial) -> None:
        if not found:
            try:
                found.extend(problems(trial))
            except (TimeoutError, IntegrityError) as error:
                found.append(repr(error))

    check()
    assert found
