"""Invariants 1, 2, 20 and 25 of the specification: streams are those of plain decoding, whatever runs beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import (
    DECODER,
    DRAFTERS,
    Scenario,
    greedy,
    job_lists,
    make_drafter,
    problems_of,
    scenarios,
    serve,
    setups,
)

import paceline.engine.draws as draws_module
import paceline.engine.pipeline as pipeline_module
import paceline.engine.round as round_module
import paceline.engine.settlement as settlement_module
from paceline.core.acceptance import Acceptance
from paceline.core.request import SamplingParams
from paceline.core.round import RowResult
from paceline.testing.collect import Behaviour
from paceline.testing.harness import Job, Setup, compare, open_engine, run_jobs
from paceline.testing.toy import ToySpec, ToyTarget

#: Requests on which every broken engine below shows: all samplings, several rows, long enough for many rounds.
TELLING = tuple(
    Job(f"job-{n}", tuple(range(n + 1, n + 8)), SamplingParams(max_tokens=14, temperature=t, seed=n), Behaviour())
    for n, t in enumerate([0.0, 0.9, 0.0, 1.2])
)


def telling(drafter: str, device_round: bool) -> Scenario:
    return Scenario(Setup(rows=3, chunk=5, depth=3, device_round=device_round), TELLING, drafter)


@given(scenarios())
def test_1_lossless_for_every_drafter_sampling_batch_and_order(scenario: Scenario) -> None:
    assert problems_of(scenario) == [], scenario.shown()


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_1_the_telling_requests_are_lossless(drafter: str, device_round: bool) -> None:
    assert problems_of(telling(drafter, device_round)) == []


@given(setups(), job_lists(), st.sampled_from(DRAFTERS))
@settings(max_examples=30)
def test_5_host_first_and_device_rounds_give_equal_results_and_statistics(
    setup: Setup, jobs: tuple[Job, ...], drafter: str
) -> None:
    host, device = (
        serve(replace(setup, device_round=order), jobs, make_drafter(drafter, DECODER)) for order in (False, True)
    )
    for job in jobs:
        a, b = host[job.name], device[job.name]
        assert (a.tokens, a.reason, a.generated) == (b.tokens, b.reason, b.generated)
        assert (a.spec, a.bursts, a.length) == (b.spec, b.bursts, b.length)


def test_5_catches_an_order_that_counts_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    original = round_module.unpack

    def unpack(row, proposal, *rest):  # type: ignore[no-untyped-def]
        result = original(row, proposal, *rest)
        return replace(result, accepted=max(0, result.accepted - 1))

    monkeypatch.setattr(round_module, "unpack", unpack)
    monkeypatch.setattr(pipeline_module, "unpack", unpack)
    job = (Job("job", (5, 6, 7), greedy(12)),)
    host, device = (serve(Setup(device_round=order), job, make_drafter("oracle", DECODER)) for order in (False, True))
    assert host["job"].spec != device["job"].spec


@pytest.fixture(params=["one too many", "padding matches", "eos is delivered"])
def broken_acceptance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Host acceptance with a fault that a careless engine could have."""

    class OneTooMany(Acceptance):
        """Accepts a proposal that differs, once the one before it matched."""

        def accept(self, token: int, grammar_done: bool = False) -> None:
            place = self.position
            if 0 < place < len(self.proposals) and self.accepted == place:
                token = self.proposals[place]
            super().accept(token, grammar_done)

    class PaddingMatches(Acceptance):
        """Does not stop at the first mismatch."""

        def accept(self, token: int, grammar_done: bool = False) -> None:
            super().accept(token, grammar_done)
            if self.correction is not None and self.position <= len(self.proposals):
                self.done = len(self.emitted) >= self._remaining

    class EosIsDelivered(Acceptance):
        """Treats an EOS like any other token."""

        def __init__(self, proposals: list[int], remaining: int, eos_ids: frozenset[int]) -> None:
            super().__init__(proposals, remaining, frozenset())

    name: str = request.param
    faults = {"one too many": OneTooMany, "padding matches": PaddingMatches, "eos is delivered": EosIsDelivered}
    monkeypatch.setattr(round_module, "Acceptance", faults[name])
    return name


def test_1_catches_a_broken_acceptance(broken_acceptance: str) -> None:
    ends = tuple(replace(job, params=replace(job.params, stop_token_ids=tuple(range(0, 64, 3)))) for job in TELLING)
    found = [
        problem
        for drafter in ("wrong", "adversarial", "ragged")
        for jobs in (TELLING, ends)
        for problem in problems_of(replace(telling(drafter, False), jobs=jobs))
    ]
    assert any("tokens differ" in problem for problem in found)


@pytest.mark.parametrize("shift", [-1, 1])
def test_1_catches_an_off_by_one_in_commit(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = settlement_module.settle

    def settle(row, state, result, outcome):  # type: ignore[no-untyped-def]
        original(row, state, result, outcome)
        if outcome.kind == "continue" and result.accepted:
            row.length += shift

    monkeypatch.setattr(settlement_module, "settle", settle)
    assert problems_of(telling("oracle", False))


def test_1_catches_a_step_that_counts_rounds_instead_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowResult, "used_draws", property(lambda self: 1))
    found = problems_of(telling("oracle", False))
    assert any("tokens differ" in problem for problem in found)


@given(setups(), job_lists(behaving=False), st.sampled_from(DRAFTERS))
@settings(max_examples=30)
def test_2_a_row_in_a_batch_is_the_row_alone(setup: Setup, jobs: tuple[Job, ...], drafter: str) -> None:
    together = serve(setup, jobs, make_drafter(drafter, DECODER))
    for job in jobs:
        alone = serve(setup, (replace(job, after=None),), make_drafter(drafter, DECODER))[job.name]
        assert together[job.name].tokens == alone.tokens
        assert (together[job.name].reason, together[job.name].generated) == (alone.reason, alone.generated)


def test_2_catches_draws_with_a_neighbours_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    original = draws_module.RowSampler.draw_window

    def draw_window(self, logits, rows, *rest):  # type: ignore[no-untyped-def]
        return original(self, logits, [rows[0]] * len(rows), *rest)

    monkeypatch.setattr(draws_module.RowSampler, "draw_window", draw_window)
    together = serve(Setup(rows=4), TELLING)
    alone = [serve(Setup(rows=4), (job,))[job.name].tokens for job in TELLING]
    assert all(alone) and [together[job.name].tokens for job in TELLING] != alone


@given(scenarios(behaving=False))
@settings(max_examples=30)
def test_20_budget_and_eos_are_counted_as_told(scenario: Scenario) -> None:
    served = serve(scenario.setup, scenario.jobs, make_drafter(scenario.drafter, DECODER))
    for job in scenario.jobs:
        got = served[job.name]
        assert job.params.max_tokens is not None and got.generated <= job.params.max_tokens
        assert got.generated == len(got.tokens) + (got.reason == "stop")
        assert not set(got.tokens) & set(job.params.stop_token_ids)


@pytest.mark.parametrize("drafter", ["none", "oracle", "adversarial"])
def test_20_a_first_token_eos_counts_one_and_delivers_nothing(drafter: str) -> None:
    prompt = (5, 6, 7)
    first = DECODER.run(prompt, greedy(1)).tokens[0]
    jobs = (Job("ends", prompt, greedy(9, stop_token_ids=(first,))),)
    got = serve(Setup(rows=1), jobs, make_drafter(drafter, DECODER))["ends"]
    assert (got.tokens, got.reason, got.generated) == ([], "stop", 1)


def test_20_catches_an_eos_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = settlement_module.settle

    def settle(row, state, result, outcome):  # type: ignore[no-untyped-def]
        original(row, state, result, outcome)
        row.generated -= outcome.kind == "stop" and result.saw_eos

    monkeypatch.setattr(settlement_module, "settle", settle)
    stop = DECODER.run((5, 6, 7), greedy(9)).tokens[4]
    job = Job("ends", (5, 6, 7), greedy(9, stop_token_ids=(stop,)))
    assert any("generated" in problem for problem in problems_of(Scenario(Setup(), (job,), "oracle")))


@given(job_lists(behaving=False, most=3), st.integers(1, 20), st.booleans(), st.sampled_from(DRAFTERS))
@settings(max_examples=40)
def test_25_chunks_and_tail_split_change_no_stream(
    jobs: tuple[Job, ...], chunk: int, tail_split: bool, drafter: str
) -> None:
    target = ToyTarget(ToySpec(tail_split=tail_split))
    with open_engine(target, (), Setup(rows=2, chunk=chunk), make_drafter(drafter, DECODER)) as engine:
        assert compare(jobs, DECODER, run_jobs(engine, jobs)) == []


@pytest.mark.parametrize("fault", ["a chunk starts late", "the last token is skipped"])
def test_25_catches_a_prompt_token_that_is_left_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.engine.prefill_plan import PrefillSpan

    original = PrefillSpan.step_at

    def step_at(self, position):  # type: ignore[no-untyped-def]
        step = original(self, position)
        if fault == "a chunk starts late" and position > 0:
            return replace(step, start=min(position + 1, step.end - 1))
        if fault == "the last token is skipped" and step.final and step.end - step.start > 1:
            return replace(step, end=step.end - 1)
        return step

    monkeypatch.setattr(PrefillSpan, "step_at", step_at)
    assert problems_of(Scenario(Setup(rows=2, chunk=5), TELLING, "none"))
