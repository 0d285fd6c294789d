"""S30: requests that are preempted with work in flight go on as if nothing had happened."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from tests.support.tiny import decoder, drafter, engine_over, greedy

import paceline.engine.preemption as preemption_module
from paceline.core.request import SamplingParams
from paceline.engine.scheduler import Scheduler
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs, watch_steps
from paceline.testing.reference import PlainDecoder

COUNT = 8
#: Each request fills some 72 positions; the pool holds three of them.
POOL = 240
ORDERS = {"host": (False, False), "device": (True, False), "ahead": (True, True)}


def crowd(sampled: bool = False) -> list[Job]:
    jobs = []
    for n in range(COUNT):
        prompt = tuple(10 + (7 * n + place) % 250 for place in range(8))
        params = SamplingParams(max_tokens=64, temperature=0.8, seed=n) if sampled else greedy(64)
        jobs.append(Job(f"job-{n}", prompt, params))
    return jobs


def make(name: str) -> Any:
    return DeviceOracleDrafter(decoder_without_end().recorded, wrong_every=4) if name == "device" else drafter(name)


class Forced:
    """After every second turn the row that was preempted least is, each at most three times. ``counts`` by request."""

    def __init__(self) -> None:
        self.turn = 0
        self.counts: Counter[str] = Counter()

    def __call__(self, scheduler: Scheduler) -> None:
        self.turn += 1
        group = scheduler._group
        if self.turn % 2 or group is None:
            return
        group.flush()
        scheduler._notify()
        rows = [row for row in scheduler.rows if self.counts[row.request.id] < 3]
        if rows:
            row = min(rows, key=lambda row: self.counts[row.request.id])
            self.counts[row.request.id] += 1
            scheduler._preempted.append(group.preempt(row))


@pytest.mark.parametrize("ram", [None, 0], ids=["snapshot", "replay"])
@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("name", ["none", "device", "D-lookup"])
def test_s30_a_pool_for_three_of_eight(name: str, order: str, ram: int | None) -> None:
    jobs = crowd(sampled=name == "none")
    with engine_over(setup_of(order, POOL, ram), make(name), ()) as engine:
        forced = Forced()
        broken = watch_steps(engine, forced)
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder_without_end(), served) == []
        assert broken == [] and leftovers(engine) == []
        stats = engine.stats()
    assert stats.preemptions > 0, "the pool forces some by itself"
    assert len(forced.counts) == COUNT and min(forced.counts.values()) >= 2
    if order == "ahead" and name != "D-lookup":
        assert stats.ahead_rounds > 20


def setup_of(order: str, pool: int | None, ram: int | None = None) -> Setup:
    device_round, run_ahead = ORDERS[order]
    return Setup(
        rows=COUNT, depth=2, device_round=device_round, run_ahead=run_ahead, kv_cache_tokens=pool, preempt_ram_bytes=ram
    )


@functools.cache
def decoder_without_end() -> PlainDecoder:
    """The plain loop without the model's EOS: every request runs to its budget."""
    plain = decoder()
    return PlainDecoder(plain.next_logits, (), plain.max_model_len, plain.vocab_size)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_s30_acceptance_after_a_preemption_is_what_it_was(order: str) -> None:
    plain = decoder_without_end()
    rates = []
    for pool in (None, POOL):
        with engine_over(setup_of(order, pool), DeviceOracleDrafter(plain.recorded, wrong_every=0), ()) as engine:
            if pool is not None:
                watch_steps(engine, Forced())
            served = run_jobs(engine, crowd())
        rates.append([got.spec.accepted / max(1, got.spec.drafted) for got in served.values()])
        assert compare(crowd(), plain, served) == []
    assert all(abs(a - b) <= 0.05 for a, b in zip(*rates, strict=True)), rates


def test_s30_catches_a_row_that_goes_on_one_input_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    right = preemption_module.restore_state

    def restore(parts: Any, preempted: Any) -> None:
        right(parts, preempted)
        preempted.row.length -= 1
        parts.tables.write_row(preempted.row)

    monkeypatch.setattr("paceline.engine.preparation.restore_state", restore)
    with engine_over(setup_of("ahead", POOL), None, ()) as engine:
        assert compare(crowd(), decoder_without_end(), run_jobs(engine, crowd())) != []
