"""The two-model drafter under pressure: preempted and restored or rebuilt rows, short pools, failures of every call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.draft.model_kit import MemorySetup, check_both, check_kv, greedy, model_rows, self_drafter, target

from paceline.cache.snapshot import RowSnapshot
from paceline.core.request import SamplingParams
from paceline.core.row import Row
from paceline.draft.kinds._model_rows import ModelRows
from paceline.engine.preemption import RamTier
from paceline.engine.state import EngineParts
from paceline.testing.collect import Collector
from paceline.testing.faulty import FailingDrafter
from paceline.testing.faulty import Method as FailingMethod
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps

PROMPTS = [tuple(range(20 + n, 20 + n + length)) for n, length in enumerate((30, 9, 21, 45, 5, 33))]


def jobs_of(max_tokens: int) -> list[Job]:
    return [
        Job(f"job-{n}", prompt, greedy(max_tokens) if n % 2 else SamplingParams(seed=n, max_tokens=max_tokens))
        for n, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("kept", [True, False], ids=["restored from memory", "rebuilt by replay"])
def test_preempted_rows_go_on_with_their_drafter(
    kept: bool, device_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool for two rows serves six: KV of target and drafter stay equal, so nearly every proposal is right."""
    snapshots: list[bool] = []
    original = RamTier.take

    def take(self: RamTier, parts: EngineParts, row: Row) -> RowSnapshot | None:
        taken = original(self, parts, row)
        snapshots.append(taken is not None)
        return taken

    monkeypatch.setattr(RamTier, "take", take)
    setup = MemorySetup(
        rows=4, chunk=16, depth=4, device_round=device_round, kv_cache_tokens=128, ram_bytes=1 << 30 if kept else 0
    )
    model, decoder = target()
    jobs = jobs_of(50)
    with open_engine(model, decoder.eos_ids, setup, self_drafter()) as engine:
        broken = watch_steps(engine, check_kv_and_lag)
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + leftovers(engine) + broken == []
        stats = engine.stats()
        assert stats.preemptions == len(snapshots) >= 2
        assert set(snapshots) == {kept}
        assert stats.drafter_failures == 0
    assert sum(got.spec.rejected for got in served.values()) <= 4 * len(jobs)
    assert sum(got.spec.accepted for got in served.values()) > 80


def check_kv_and_lag(scheduler) -> None:  # type: ignore[no-untyped-def]
    """Rounds without depth may let a row fall behind, never get ahead; its KV is right as far as it goes."""
    check_kv(scheduler)
    rows = model_rows(scheduler)
    for row in scheduler.rows if rows is not None else ():
        assert rows.covered(row) <= row.length


@pytest.mark.parametrize("method", ["open_row", "prefill", "prepare_join", "draft", "commit", "close_row"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_failure_costs_proposals_and_no_token(method: FailingMethod, call: int) -> None:
    model, decoder = target()
    jobs = jobs_of(12)[:4]
    drafter = FailingDrafter(self_drafter(), method, call)
    with open_engine(model, decoder.eos_ids, Setup(rows=2, chunk=16), drafter) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + leftovers(engine) == []
        assert engine.stats().drafter_failures == drafter.raised == 1


@pytest.mark.parametrize("chunk", [1, 16, 512])
def test_acceptance_does_not_depend_on_the_chunks_of_the_prompt(chunk: int) -> None:
    model, decoder = target()
    jobs = [Job("job", PROMPTS[3], greedy(41)), Job("beside", PROMPTS[0], greedy(41), after=("job", 4))]
    with open_engine(model, decoder.eos_ids, Setup(rows=2, chunk=chunk), self_drafter()) as engine:
        broken = watch_steps(engine, check_both)
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + broken == []
    assert {tuple(got.spec.acceptance_lengths) for got in served.values()} == {(4,) * 8}


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("length", [33, 48, 70])
def test_samples_of_one_prompt_share_the_drafters_blocks_too(
    length: int, has_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the shared prefix has no drafter state, each sample makes it up in blocks of its own."""
    if not has_state:
        monkeypatch.setattr(ModelRows, "capture", lambda self, row, length: None)
    model, decoder = target()
    prompt = tuple((5 * place) % 300 + 4 for place in range(length))
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=20, ignore_eos=True)
    collectors = [Collector() for _ in range(3)]
    with open_engine(model, decoder.eos_ids, Setup(rows=3, chunk=32), self_drafter()) as engine:
        broken = watch_steps(engine, check_both)
        names = engine.add_samples(prompt, params, collectors, "samples")
        served = {name: got.wait() for name, got in zip(names, collectors, strict=True)}
        jobs = [Job(name, prompt, replace(params, seed=3 + place)) for place, name in enumerate(names)]
        assert compare(jobs, decoder, served) + leftovers(engine) + broken == []
        assert engine.stats().drafter_failures == 0
        assert engine.stats().prompt_tokens == length, "fed once"
    assert all(got.spec.rejected <= 4 and got.spec.accepted > 10 for got in served.values())


def test_without_blocks_for_state_of_its_own_a_sample_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRows, "capture", lambda self, row, length: None)
    model, decoder = target()
    prompt = tuple((5 * place) % 300 + 4 for place in range(70))
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=8, ignore_eos=True)
    collectors = [Collector() for _ in range(2)]
    with open_engine(model, decoder.eos_ids, Setup(rows=2, chunk=32, kv_cache_tokens=128), self_drafter()) as engine:
        names = engine.add_samples(prompt, params, collectors, "samples")
        served = {name: got.wait() for name, got in zip(names, collectors, strict=True)}
        jobs = [Job(name, prompt, replace(params, seed=3 + place)) for place, name in enumerate(names)]
        assert compare(jobs, decoder, served) + leftovers(engine) == []
        assert engine.stats().drafter_failures == 1
    assert [got.spec.accepted > 0 for got in collectors] == [True, False]
