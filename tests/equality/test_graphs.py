"""Rounds as graphs through the whole engine: with recorded functions every stream is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.equality.test_invariant_ahead import costs
from tests.support.scenarios import DECODER, TOY, greedy, job_lists

from paceline.core.request import SamplingParams
from paceline.draft.base import DraftProvider, NullDrafter
from paceline.draft.kinds.eagle3 import random_eagle3
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.engine import graph_runner
from paceline.engine.build import target_view
from paceline.engine.engine import Engine
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.grid import target_of
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.recorded import RecordedFunctions
from paceline.testing.workload import make_prompt

DRAFTERS: dict[str, Callable[[], DraftProvider]] = {
    "none": NullDrafter,
    "ngram": lambda: NgramDrafter(on_device=False),
    "ngram on the device": lambda: NgramDrafter(on_device=True),
    "suffix": SuffixDrafter,
    "device": lambda: DeviceOracleDrafter(DECODER.recorded),
    "device ragged": lambda: DeviceOracleDrafter(DECODER.recorded, wrong_every=3, ragged=True),
}


def problems(setup: Setup, jobs: tuple[Job, ...], drafter: DraftProvider) -> list[str]:
    with open_engine(TOY, DECODER.eos_ids, setup, drafter) as engine:
        found = compare(jobs, DECODER, run_jobs(engine, jobs, timeout=20)) + leftovers(engine)
        if engine.stats().drafter_failures:
            found.append("the drafter failed")
        return found + [f"not recorded: {reason}" for reason in engine.info()["graphs"]["failures"].values()]


def graphed(rows: int = 3, depth: int = 3, **options: object) -> Setup:
    setup = Setup(rows=rows, chunk=7, depth=depth, device_round=True, graphs=RecordedFunctions())
    return replace(setup, **options)  # type: ignore[arg-type]


@st.composite
def graph_setups(draw: st.DrawFn) -> Setup:
    return graphed(
        rows=draw(st.sampled_from([1, 3, 5])),
        depth=draw(st.integers(1, 5)),
        chunk=draw(st.sampled_from([1, 5, 64])),
        run_ahead=draw(st.booleans()),
        kv_cache_tokens=draw(st.sampled_from([None, None, 160])),
        costs=draw(st.sampled_from([None, costs(0.0), costs(0.4), costs(5.0)])),
    )


@given(graph_setups(), job_lists(), st.sampled_from(sorted(DRAFTERS)))
@settings(max_examples=40)
def test_streams_equal_plain_decoding(setup: Setup, jobs: tuple[Job, ...], drafter: str) -> None:
    assert problems(setup, jobs, DRAFTERS[drafter]()) == []


def predicted(name: str, seed: int) -> Job:
    """A row whose prediction is its plain text with one id in the middle replaced."""
    job = Job(name, make_prompt(seed, 9 + seed, DECODER.vocab_size), greedy(70))
    text = list(DECODER.run(job.prompt, job.params).tokens)
    text[30] = (text[30] + 1) % DECODER.vocab_size
    return replace(job, params=replace(job.params, prediction=tuple(text)))


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
@pytest.mark.parametrize("count", [1, 3])
def test_spans_run_as_graphs_alone_and_beside_others(drafter: str, count: int) -> None:
    jobs = tuple(predicted(f"job-{n}", n) for n in range(count))
    backend = RecordedFunctions()
    setup = graphed(graphs=backend)
    with open_engine(TOY, DECODER.eos_ids, setup, DRAFTERS[drafter]()) as engine:
        served = run_jobs(engine, jobs, timeout=20)
        assert compare(jobs, DECODER, served) + leftovers(engine) == []
        assert engine.stats().span_rounds > 0
        assert backend.replays > 0


def run(backend: RecordedFunctions, look: Callable[[Engine], object], drafter: str = "device") -> object:
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 9 + n, DECODER.vocab_size), greedy(24 + 5 * n)) for n in range(5))
    with open_engine(TOY, DECODER.eos_ids, graphed(graphs=backend), DRAFTERS[drafter]()) as engine:
        assert compare(jobs, DECODER, run_jobs(engine, jobs, timeout=20)) + leftovers(engine) == []
        return look(engine)


@pytest.mark.parametrize("drafter", ["none", "suffix", "device", "ngram on the device"])
def test_every_device_round_is_a_replay(drafter: str) -> None:
    backend = RecordedFunctions()
    rounds = run(backend, lambda engine: engine.stats().device_rounds, drafter)
    assert backend.replays - rounds in (0, 1), "at the end a round may be in flight that nobody waits for"  # type: ignore[operator]


def test_the_engine_says_what_was_recorded() -> None:
    backend = RecordedFunctions()
    graphs = run(backend, lambda engine: engine.info()["graphs"])
    assert graphs["captured"] > 30 and graphs["bytes"] == backend.held and graphs["failures"] == {}  # type: ignore[index]


def test_rounds_that_cannot_be_recorded_run_anyway() -> None:
    backend = RecordedFunctions(refuses=True)
    graphs = run(backend, lambda engine: engine.info()["graphs"])
    assert graphs["captured"] == backend.replays == 0  # type: ignore[index]
    assert "nothing can be recorded" in next(iter(graphs["failures"].values()))  # type: ignore[index]


def eagle_problems(rows: int) -> tuple[list[str], int, int]:
    target, decoder = target_of("llama")
    view = target_view(target, decoder.eos_ids, None)
    drafter = random_eagle3(view, listed=200, sharpness=0.3)
    params = [SamplingParams(max_tokens=14 + 3 * n, temperature=0.7 * (n % 2), seed=n) for n in range(5)]
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 6 + n, decoder.vocab_size), params[n]) for n in range(5))
    backend = RecordedFunctions()
    with open_engine(target, decoder.eos_ids, graphed(rows, graphs=backend), drafter) as engine:
        found = compare(jobs, decoder, run_jobs(engine, jobs)) + leftovers(engine)
        stats = engine.stats()
        failures = [] if not stats.drafter_failures else ["the drafter failed"]
        return found + failures, stats.num_draft_tokens, backend.replays


def test_a_chain_drafter_with_kv_of_its_own_drafts_in_graphs() -> None:
    found, drafted, replays = eagle_problems(rows=3)
    assert (found, drafted > 0, replays > 0) == ([], True, True)


def live_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that fills batches is a live one: it advances once more than its figures say."""
    inner = graph_runner.GraphLauncher._write_upload

    def write(self, slot, ask, rows, given):  # type: ignore[no-untyped-def]
        size = inner(self, slot, ask, rows, given)
        slot.upload[len(ask.indices) : rows] = ask.indices[0]
        return size

    monkeypatch.setattr(graph_runner.GraphLauncher, "_write_upload", write)


def old_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host reads is the round before."""
    monkeypatch.setattr(RecordedFunctions, "record", lambda self, run: (run().clone(), lambda: run() is None))


@pytest.mark.parametrize("break_it", [live_padding, old_results])
def test_broken_graphs_are_noticed(monkeypatch: pytest.MonkeyPatch, break_it: Callable[..., None]) -> None:
    break_it(monkeypatch)
    jobs = tuple(Job(f"job-{n}", make_prompt(n, 9 + n, DECODER.vocab_size), greedy(24)) for n in range(3))
    assert problems(graphed(rows=4), jobs, DRAFTERS["device"]())
