"""Invariants 24, 26, 31, 32 and 34: prefill plans, first tokens before joins, one group, load figures, aborts."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import (
    DECODER,
    DRAFTERS,
    TOY,
    Scenario,
    greedy,
    job_lists,
    make_drafter,
    sampling_params,
    scenarios,
    setups,
)

import paceline.engine.binder as binder_module
from paceline.engine.binder import group_key
from paceline.engine.prefill_plan import PrefillSpan
from paceline.engine.preparation import Preparation
from paceline.engine.scheduler import Scheduler
from paceline.engine.state import PrefillStep
from paceline.testing.collect import Collector
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.toy import ToyTarget
from paceline.testing.watch import WatchedDrafter

# -- 24: prefill plan ------------------------------------------------------------------------------------------------


@st.composite
def spans(draw: st.DrawFn) -> PrefillSpan:
    prompt = draw(st.integers(1, 60))
    tail_split = draw(st.booleans())
    end = prompt - (1 if tail_split and prompt > 1 else 0)
    cached = draw(st.integers(0, prompt - 1))
    span = PrefillSpan.of_prompt(prompt, draw(st.integers(1, 20)), tail_split=tail_split, cached=min(cached, end))
    return span.kept(prompt, draw(st.one_of(st.none(), st.integers(1, 80)))) if draw(st.booleans()) else span


def check_plan(span: PrefillSpan, steps: list[PrefillStep]) -> None:
    """Invariant 24: a partition in order, each step within the chunk, one final, at most one save at the boundary."""
    assert steps[0].start == span.cached and steps[-1].end == span.end
    assert all(a.end == b.start for a, b in pairwise(steps)), "gap or overlap"
    assert all(0 < step.end - step.start <= span.chunk for step in steps) or span.cached == span.end
    assert [step.final for step in steps] == [False] * (len(steps) - 1) + [True]
    saves = [step.end for step in steps if step.saves]
    assert saves == ([span.boundary] if span.cached < span.boundary <= span.end else [])


@given(spans())
def test_24_steps_partition_the_span(span: PrefillSpan) -> None:
    check_plan(span, list(span.steps()))


#: Spec 4.10 with chunk 4: prompt, kept, tail split, checkpoint_at, cached -> steps (end, final, saves).
TABLE = [
    ((10, True, False, None, 0), [(4, 0, 0), (8, 0, 0), (9, 0, 1), (10, 1, 0)]),
    ((10, True, True, None, 0), [(4, 0, 0), (8, 0, 0), (9, 1, 1)]),
    ((10, False, False, None, 0), [(4, 0, 0), (8, 0, 0), (10, 1, 0)]),
    ((10, True, False, 6, 0), [(4, 0, 0), (6, 0, 1), (10, 1, 0)]),
    ((10, True, False, 6, 7), [(10, 1, 0)]),
    ((10, True, True, None, 9), [(9, 1, 0)]),
    ((1, True, False, None, 0), [(1, 1, 0)]),
]


@pytest.mark.parametrize(("case", "expected"), TABLE)
def test_24_the_table_of_the_specification(case: tuple[Any, ...], expected: list[tuple[int, int, int]]) -> None:
    prompt, kept, tail_split, checkpoint_at, cached = case
    span = PrefillSpan.of_prompt(prompt, 4, tail_split=tail_split, cached=cached)
    if kept:
        span = span.kept(prompt, checkpoint_at)
    assert [(step.end, step.final, step.saves) for step in span.steps()] == expected


@pytest.mark.parametrize("fault", ["overlap", "too long", "saves elsewhere", "two finals"])
def test_24_catches_broken_plans(fault: str) -> None:
    span = PrefillSpan.of_prompt(10, 4, tail_split=False).kept(10, 6)
    steps = list(span.steps())
    check_plan(span, steps)
    broken = {
        "overlap": [steps[0], replace(steps[1], start=3), *steps[2:]],
        "too long": [replace(steps[0], end=6, saves=True), *steps[2:], PrefillStep(10, 10, True)],
        "saves elsewhere": [replace(steps[0], saves=True), *steps[1:]],
        "two finals": [replace(steps[0], final=True), *steps[1:]],
    }
    with pytest.raises(AssertionError):
        check_plan(span, broken[fault])


@pytest.mark.parametrize("chunk", [1, 5, 16, 40])
def test_24_packed_prefills_stay_within_the_chunk(chunk: int) -> None:
    watched = WatchedDrafter(make_drafter("oracle", DECODER))
    many = [Job(f"job-{n}", tuple(range(1, 5 + n)), greedy(3), after=("first", 1)) for n in range(6)]
    with open_engine(TOY, (), Setup(rows=7, chunk=chunk), watched) as engine:
        run_jobs(engine, [Job("first", (1,), greedy(8)), *many])
    assert watched.problems == []
    prefills = [len(rows) for method, rows in watched.events if method == "prefill"]
    assert watched.largest_prefill <= chunk and (chunk < 16 or max(prefills) > 1), "rows are packed, but no more fit"


# -- 26: publication before join -------------------------------------------------------------------------------------


@dataclass
class Advances:
    """What one call of ``Preparation.advance`` did."""

    published: int = 0
    joined: list[str] = field(default_factory=list)
    forwards: int = 0


def advances_of(scenario: Scenario, patch: pytest.MonkeyPatch) -> list[Advances]:
    """Every advance of a preparation while a scenario runs."""
    calls: list[Advances] = []
    target = ToyTarget()
    original, publish, join = Preparation.advance, Scheduler.publish, Scheduler.join
    inside: list[Advances] = []

    def advance(self: Preparation) -> bool:
        inside.append(Advances())
        try:
            return original(self)
        finally:
            calls.append(inside.pop())

    def before(name: str) -> None:
        if inside and name == "forward":
            inside[-1].forwards += 1

    def publishing(self: Scheduler, row: Any, tokens: Any, metadata: Any) -> int:
        if inside:
            inside[-1].published += 1
        return publish(self, row, tokens, metadata)

    def joining(self: Scheduler, row: Any) -> None:
        inside[-1].joined.append(row.request.id)
        join(self, row)

    target.before = before
    patch.setattr(Preparation, "advance", advance)
    patch.setattr(Scheduler, "publish", publishing)
    patch.setattr(Scheduler, "join", joining)
    with open_engine(target, (), scenario.setup, make_drafter(scenario.drafter, DECODER)) as engine:
        run_jobs(engine, scenario.jobs, timeout=20)
    return calls


def check_advances(calls: list[Advances]) -> None:
    """Invariant 26: an advance joins or works on prompts, never both."""
    for call in calls:
        assert not (call.joined and (call.published or call.forwards)), call
        assert call.forwards <= 1, "at most one prefill forward per turn"


@given(scenarios())
@settings(max_examples=25)
def test_26_first_tokens_are_published_before_their_row_joins(scenario: Scenario) -> None:
    with pytest.MonkeyPatch.context() as patch:
        check_advances(advances_of(scenario, patch))


def test_26_catches_a_preparation_that_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Preparation.advance

    def eager(self: Preparation) -> bool:
        original(self)
        return original(self)

    monkeypatch.setattr(Preparation, "advance", eager)
    jobs = tuple(Job(f"job-{n}", (n + 1, n + 2), greedy(6)) for n in range(3))
    with pytest.raises(AssertionError):
        check_advances(advances_of(Scenario(Setup(rows=2), jobs, "none"), monkeypatch))


# -- 31: grouping ----------------------------------------------------------------------------------------------------

facts = st.tuples(st.sampled_from(["none", "ngram", "a", 'a"', "a,1"]), st.integers(0, 12), st.booleans())


@given(facts, facts)
def test_31_keys_are_equal_iff_their_facts_are(one: tuple[str, int, bool], other: tuple[str, int, bool]) -> None:
    assert (group_key(*one) == group_key(*other)) == (one == other)


def groups_of(jobs: tuple[Job, ...]) -> set[int]:
    """Identities of the groups that rows of ``jobs`` decoded in."""
    seen: set[int] = set()

    def note(scheduler: Scheduler) -> None:
        if scheduler.rows:
            seen.add(id(scheduler._group))

    with open_engine(TOY, (), Setup(rows=8), make_drafter("ragged", DECODER)) as engine:
        watch_steps(engine, note)
        served = run_jobs(engine, jobs, timeout=20)
        assert compare(jobs, DECODER, served) == []
    return seen


@given(st.lists(sampling_params(), min_size=4, max_size=8))
@settings(max_examples=20)
def test_31_rows_of_every_sampling_share_one_group(params: list[Any]) -> None:
    jobs = tuple(Job(f"job-{n}", (n + 1, n + 2), replace(p, max_tokens=6)) for n, p in enumerate(params))
    assert len(groups_of(jobs)) <= 1


def test_31_catches_a_key_that_depends_on_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    original = binder_module.bind_speculative_group

    def by_temperature(binding):  # type: ignore[no-untyped-def]
        bind = original(binding)
        call = type(bind).__call__

        def keyed(self, request):  # type: ignore[no-untyped-def]
            return replace(call(self, request), key=f"{self.key}/{request.params.temperature}")

        monkeypatch.setattr(type(bind), "__call__", keyed)
        return bind

    monkeypatch.setattr("paceline.engine.build.bind_speculative_group", by_temperature)
    jobs = tuple(Job(f"job-{n}", (n + 1,), greedy(6, temperature=n * 0.5, seed=n)) for n in range(3))
    with pytest.raises(AssertionError):
        groups_of(jobs)


# -- 32: load figures ------------------------------------------------------------------------------------------------


def figure_problems(scenario: Scenario) -> list[str]:
    """Compare the load figures with section 18 after every turn, and with 0 at the end."""

    def check(scheduler: Scheduler) -> None:
        rows = scheduler.rows
        widths = [min(row.request.draft_cap, row.request.max_tokens - row.generated) for row in rows]
        expected = len(rows) * (1 + max(widths)) if rows else 0
        assert scheduler.running_tokens == expected, f"running_tokens {scheduler.running_tokens}, expected {expected}"
        preparing = scheduler._preparation.rows if scheduler._preparation else []
        weight = sum(row.prompt_tokens - (0 if row.pending >= 0 else row.length) for row in preparing)
        assert scheduler.token_weight == weight, f"token_weight {scheduler.token_weight}, expected {weight}"

    with open_engine(TOY, (), scenario.setup, make_drafter(scenario.drafter, DECODER)) as engine:
        found = watch_steps(engine, check)
        run_jobs(engine, scenario.jobs, timeout=20)
        return found + leftovers(engine)


@given(scenarios())
@settings(max_examples=30)
def test_32_load_figures_are_those_of_section_18(scenario: Scenario) -> None:
    assert figure_problems(scenario) == []


@pytest.mark.parametrize("fault", ["ready rows", "budget"])
def test_32_catches_figures_that_leave_something_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "ready rows":
        monkeypatch.setattr(Preparation, "token_weight", property(lambda self: self._engine.token_weight))
    else:
        wide = property(lambda self: sum(1 + row.request.draft_cap for row in self.rows))
        monkeypatch.setattr(Scheduler, "running_tokens", wide)
    jobs = tuple(Job(f"job-{n}", (n + 1,) * 9, greedy(5 + n)) for n in range(4))
    assert figure_problems(Scenario(Setup(rows=3, chunk=4), jobs, "oracle"))


# -- 34: abort -------------------------------------------------------------------------------------------------------


def check_ends(jobs: tuple[Job, ...], served: dict[str, Collector]) -> None:
    """Invariant 34: each request ended once, by abort with its reason after a prefix, or as in plain decoding."""
    for job in jobs:
        got, run = served[job.name], DECODER.run(job.prompt, job.params)
        assert got.problems == [], got.problems
        if got.reason == "abort":
            assert got.finished is not None and "enough" in str(got.finished.error)
            assert tuple(got.tokens) == run.tokens[: len(got.tokens)]
        else:
            assert (tuple(got.tokens), got.reason) == (run.tokens, run.finish_reason)


@given(setups(), job_lists(behaving=False), st.sampled_from(DRAFTERS), st.integers(0, 10**6))
@settings(max_examples=30)
def test_34_an_abort_at_any_moment_ends_in_one_end(
    setup: Setup, jobs: tuple[Job, ...], drafter: str, seed: int
) -> None:
    chance = random.Random(seed)
    doomed = [job.name for job in jobs if chance.random() < 0.6]
    turns = {name: chance.randint(0, 12) for name in doomed}
    turn = 0

    with open_engine(TOY, (), setup, make_drafter(drafter, DECODER)) as engine:

        def abort_now(scheduler: Scheduler) -> None:
            nonlocal turn
            for name, when in turns.items():
                if when <= turn:
                    engine.abort(name, "enough")
            turn += 1

        found = watch_steps(engine, abort_now)
        served = run_jobs(engine, jobs, timeout=20)
        check_ends(jobs, served)
        assert found == [] and leftovers(engine) == []


def test_34_aborts_from_many_threads_while_requests_end() -> None:
    jobs = tuple(Job(f"job-{n}", (n % 60 + 1, n % 7 + 1), greedy(1 + n % 9)) for n in range(60))
    with open_engine(TOY, (), Setup(rows=4), make_drafter("oracle", DECODER)) as engine:

        def pester(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(400):
                engine.abort(f"job-{chance.randrange(0, 80)}", "enough")

        threads = [threading.Thread(target=pester, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        served = run_jobs(engine, jobs, timeout=20)
        for thread in threads:
            thread.join()
        check_ends(jobs, served)
        assert leftovers(engine) == []
        assert engine.abort("job-0", "enough") is False, "a finished request is unknown"


@pytest.mark.parametrize("fault", ["ends twice", "ends never"])
def test_34_catches_an_end_that_is_told_twice_or_never(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler._notify

    def notify(self):  # type: ignore[no-untyped-def]
        aborted = [entry for entry in self._ended if entry[2].reason == "abort"]
        if fault == "ends never":
            self._ended = [entry for entry in self._ended if entry not in aborted]
        else:
            self._ended += aborted
        original(self)

    monkeypatch.setattr(Scheduler, "_notify", notify)
    jobs = (Job("job-0", (1, 2), greedy(9)),)
    with open_engine(TOY, (), Setup(), make_drafter("none", DECODER)) as engine:
        watch_steps(engine, lambda scheduler: engine.abort("job-0", "enough") and None)
        if fault == "ends never":
            with pytest.raises(TimeoutError):
                run_jobs(engine, jobs, timeout=0.5)
        else:
            served = run_jobs(engine, jobs)
            engine.close()
            assert served["job-0"].problems == ["finish was called twice"]
