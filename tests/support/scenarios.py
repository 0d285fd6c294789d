"""Random scenarios for property tests: an engine over the toy target, requests of every kind, some joining midway."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from paceline.core.request import SamplingParams
from paceline.draft.base import DraftProvider, NullDrafter
from paceline.testing.collect import ENDED, Behaviour, Collector
from paceline.testing.drafters import (
    AdversarialDrafter,
    EmptyDrafter,
    OracleDrafter,
    RaggedDrafter,
    RandomDrafter,
    ScriptedDrafter,
)
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.reference import PlainDecoder
from paceline.testing.toy import ToyTarget
from paceline.testing.watch import WatchedDrafter
from paceline.testing.workload import make_prompt

DRAFTERS = ("none", "empty", "oracle", "wrong", "adversarial", "ragged", "random", "scripted")
TOY = ToyTarget()
DECODER = TOY.decoder()


@dataclass(frozen=True)
class Scenario:
    """One engine and its requests."""

    setup: Setup
    jobs: tuple[Job, ...]
    drafter: str

    def shown(self) -> str:
        return f"{self.drafter} {self.setup} " + "; ".join(
            f"{job.name}: {len(job.prompt)} tokens, {job.params}, {job.behaviour}, after {job.after}"
            for job in self.jobs
        )


def make_drafter(name: str, decoder: PlainDecoder) -> DraftProvider:
    """A test drafter by name that knows the plain runs of ``decoder``."""
    if name == "oracle":
        return OracleDrafter(decoder.recorded)
    if name == "wrong":
        return OracleDrafter(decoder.recorded, wrong_at=1)
    if name == "adversarial":
        return AdversarialDrafter(decoder.recorded)
    if name == "ragged":
        return RaggedDrafter(decoder.recorded)
    if name == "random":
        return RandomDrafter()
    if name == "scripted":
        return ScriptedDrafter([[1, 2, 3], [], [4] * 8] * 40, free=False)
    return EmptyDrafter() if name == "empty" else NullDrafter()


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=draw(st.integers(1, 14)),
        temperature=draw(st.sampled_from([0.0, 0.6, 1.0, 1.5])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])),
        top_k=draw(st.sampled_from([0, 1, 7, 500])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(0, 2**64 - 1)),
        stop_token_ids=draw(st.sampled_from([(), (3, 11), tuple(range(0, 64, 5))])),
        num_draft_tokens=draw(st.sampled_from([None, None, 0, 2])),
        speculative=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def behaviours(draw: st.DrawFn) -> Behaviour:
    place = draw(st.integers(1, 9))
    kinds = (
        Behaviour(),
        Behaviour(),
        Behaviour(),
        Behaviour(place),
        Behaviour(None, place),
        Behaviour(None, None, place),
    )
    return draw(st.sampled_from(kinds))


@st.composite
def job_lists(draw: st.DrawFn, behaving: bool = True, most: int = 7) -> tuple[Job, ...]:
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, most))):
        prompt = make_prompt(draw(st.integers(0, 30)), draw(st.integers(1, 40)), DECODER.vocab_size)
        after = None
        if jobs and draw(st.booleans()):
            after = (draw(st.sampled_from(jobs)).name, draw(st.sampled_from([1, 3, ENDED])))
        behaviour = draw(behaviours()) if behaving else Behaviour()
        jobs.append(Job(f"job-{number}", prompt, draw(sampling_params()), behaviour, after))
    return tuple(jobs)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    return Setup(
        rows=draw(st.sampled_from([1, 2, 3, 5])),
        chunk=draw(st.sampled_from([1, 5, 16, 64])),
        depth=draw(st.integers(0, 6)),
        device_round=draw(st.booleans()),
    )


@st.composite
def scenarios(draw: st.DrawFn, behaving: bool = True) -> Scenario:
    return Scenario(draw(setups()), draw(job_lists(behaving)), draw(st.sampled_from(DRAFTERS)))


def problems_of(scenario: Scenario) -> list[str]:
    """Run a scenario; what departs from plain decoding, breaks the drafter contract or is left behind."""
    watched = WatchedDrafter(make_drafter(scenario.drafter, DECODER))
    with open_engine(TOY, DECODER.eos_ids, scenario.setup, watched) as engine:
        served = run_jobs(engine, scenario.jobs, timeout=20)
        found = compare(scenario.jobs, DECODER, served) + leftovers(engine)
        if engine.stats().drafter_failures:
            found.append("the drafter failed")
        if watched.largest_prefill > scenario.setup.chunk:
            found.append(f"a prefill ran {watched.largest_prefill} tokens")
    return found + watched.problems


def serve(setup: Setup, jobs: tuple[Job, ...], drafter: DraftProvider | None = None) -> dict[str, Collector]:
    """Run jobs over the toy target and return what their consumers saw."""
    with open_engine(TOY, DECODER.eos_ids, setup, drafter or NullDrafter()) as engine:
        return run_jobs(engine, jobs, timeout=20)


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return replace(SamplingParams(temperature=0.0, max_tokens=max_tokens), **options)  # type: ignore[arg-type]
