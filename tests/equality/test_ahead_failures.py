"""Invariants 14 and 18 where rounds run ahead: failures with a round in flight, the end of the context, windows that
slide, rows that keep the batch back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.scenarios import DECODER, TOY, greedy, serve

from paceline.core.batch import Draft
from paceline.core.request import DEVICE_EOS_IDS
from paceline.core.row import Row
from paceline.draft.base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.engine.launch import TensorFigures
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Collector
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.grid import COSTS, target_of
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.toy import ToyTarget
from paceline.testing.workload import make_prompt

AHEAD = Setup(rows=3, chunk=7, depth=3, device_round=True)


def jobs(tokens: int = 20, count: int = 5, **options: Any) -> tuple[Job, ...]:
    return tuple(
        Job(f"job-{n}", make_prompt(n, 9 + n, DECODER.vocab_size), greedy(tokens + n, **options)) for n in range(count)
    )


class Broken(DraftProvider):
    """The device oracle with one method in the place of its own: ``change(call, rows, *arguments)``."""

    id = "broken"
    external_tokens = True

    def __init__(self, method: str, change: Callable[..., Any]) -> None:
        self.method, self.change, self.calls = method, change, 0
        self._inner = DeviceOracleDrafter(DECODER.recorded, wrong_every=4)

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        rows = self._inner.open(view, draw, constraints)
        right = getattr(rows, self.method)

        def called(*arguments: Any) -> Any:
            self.calls += 1
            return self.change(self.calls, right, *arguments)

        setattr(rows, self.method, called)
        return rows


def raising(at: int) -> Callable[..., Any]:
    def change(call: int, right: Callable[..., Any], *arguments: Any) -> Any:
        if call == at:
            raise RuntimeError("broke on purpose")
        return right(*arguments)

    return change


@pytest.mark.parametrize("at", [1, 2, 7])
@pytest.mark.parametrize("method", ["before_device_round", "draft_device", "commit_device"])
def test_14_a_device_drafter_that_raises_costs_proposals_only(method: str, at: int) -> None:
    drafter = Broken(method, raising(at))
    with open_engine(TOY, DECODER.eos_ids, AHEAD, drafter) as engine:
        served = run_jobs(engine, jobs(), timeout=20)
        assert compare(jobs(), DECODER, served) + leftovers(engine) == []
        assert engine.stats().drafter_failures == 1
        fresh = run_jobs(engine, (Job("fresh", (1, 2, 3), greedy(12)),), timeout=20)["fresh"]
        assert fresh.spec.accepted > 0, "rows that come later are drafted for"


def test_14_rows_that_lose_their_drafter_before_a_round_propose_nothing_in_it() -> None:
    lost: list[int] = []
    asked: list[dict[int, int]] = []

    class OneRowLost(Broken):
        def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
            rows = super().open(view, draw, constraints)
            right = rows.draft_device

            def draft_device(index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
                if lost:
                    asked.append(dict(zip(index.tolist(), depths.tolist(), strict=True)))
                return right(index, depths, depth)

            rows.draft_device = draft_device  # type: ignore[method-assign]
            return rows

    def change(call: int, right: Callable[..., Any], rows: Sequence[Row], *more: Any) -> Any:
        if call == 3:
            lost.append(rows[0].index)
            error = RuntimeError("one row only")
            error.row = rows[0]  # type: ignore[attr-defined]
            raise error
        return right(rows, *more)

    asked_for = jobs(count=3)
    with open_engine(TOY, DECODER.eos_ids, AHEAD, OneRowLost("before_device_round", change)) as engine:
        served = run_jobs(engine, asked_for, timeout=20)
        assert compare(asked_for, DECODER, served) + leftovers(engine) == []
    assert asked and all(depths.get(lost[0], 0) == 0 for depths in asked)
    assert any(any(depths.values()) for depths in asked), "the other rows keep theirs"


def _too_wide(draft: Draft) -> Draft:
    return Draft(torch.cat([draft.tokens, draft.tokens, draft.tokens], dim=1), draft.lengths + 5)


LIES: dict[str, Callable[[Draft], Any]] = {
    "a row too few": lambda draft: Draft(draft.tokens[1:], draft.lengths[1:]),
    "too wide": _too_wide,
    "too narrow": lambda draft: Draft(draft.tokens[:, :1], draft.lengths),
    "flat": lambda draft: Draft(draft.tokens.flatten(), draft.lengths),
    "negative lengths": lambda draft: Draft(draft.tokens, draft.lengths - 9),
    "lengths past the depth": lambda draft: Draft(draft.tokens, draft.lengths + 9),
    "ids that do not exist": lambda draft: Draft(draft.tokens * 0 + 2**31 - 1, draft.lengths),
    "negative ids": lambda draft: Draft(draft.tokens * 0 - 1, draft.lengths),
    "nothing": lambda draft: None,
}


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("lie", sorted(LIES))
def test_14_a_device_drafter_out_of_contract_changes_no_stream(lie: str, run_ahead: bool) -> None:
    drafter = Broken("draft_device", lambda call, right, *arguments: LIES[lie](right(*arguments)))
    setup = replace(AHEAD, run_ahead=run_ahead)
    with open_engine(TOY, DECODER.eos_ids, setup, drafter) as engine:
        served = run_jobs(engine, jobs(), timeout=20)
        assert compare(jobs(), DECODER, served) + leftovers(engine) == []
        assert max(engine.stats().depth_histogram) <= 3
    assert drafter.calls > 0


@pytest.mark.parametrize("place", [1, 2, 5])
@pytest.mark.parametrize("drafter", ["none", "device"])
def test_14_logits_that_are_not_finite_end_their_row_with_a_round_in_flight(drafter: str, place: int) -> None:
    target, wanted = ToyTarget(), jobs()
    target.poison.add((wanted[1].prompt[0], len(wanted[1].prompt) + place))
    provider = None if drafter == "none" else DeviceOracleDrafter(DECODER.recorded, wrong_every=3)
    with open_engine(target, DECODER.eos_ids, AHEAD, provider) as engine:
        served = run_jobs(engine, wanted, timeout=20)
        spoilt = served.pop("job-1")
        assert compare([job for job in wanted if job.name != "job-1"], DECODER, served) + leftovers(engine) == []
        assert spoilt.reason == "error" and "finite" in str(spoilt.finished)
        text = DECODER.run(wanted[1].prompt, wanted[1].params).tokens
        assert tuple(spoilt.tokens) == text[: len(spoilt.tokens)]
        assert engine.stats().bad_rows == 1 and engine.stats().ahead_rounds > 5


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_14_a_read_that_fails_closes_the_group_and_gives_everything_back(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, reads = TensorFigures.read, iter(range(1, 10_000))

    def read(self: TensorFigures) -> list[list[int]]:
        if next(reads) == at:
            raise RuntimeError("the device is gone")
        return right(self)

    monkeypatch.setattr(TensorFigures, "read", read)
    wanted = tuple(replace(job, params=replace(job.params, max_tokens=3 + 5 * n)) for n, job in enumerate(jobs()))
    with open_engine(TOY, DECODER.eos_ids, AHEAD, DeviceOracleDrafter(DECODER.recorded)) as engine:
        served = run_jobs(engine, wanted, timeout=20)
        assert {got.reason for got in served.values()} <= {"error", "length"}
        assert all(got.problems == [] for got in served.values()) and leftovers(engine) == []
        again = run_jobs(engine, [replace(job, name=job.name + "-again") for job in wanted], timeout=20)
        fresh = [replace(job, name=job.name + "-again") for job in wanted]
        assert compare(fresh, DECODER, again) + leftovers(engine) == []


def test_14_a_failed_flush_keeps_no_index_of_a_row_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row leaves while a round names it, then that round cannot be read: its index must still come back."""
    right = TensorFigures.read
    armed: list[bool] = []

    def read(self: TensorFigures) -> list[list[int]]:
        if armed:
            armed.clear()
            raise RuntimeError("the device is gone")
        return right(self)

    monkeypatch.setattr(TensorFigures, "read", read)
    with open_engine(TOY, DECODER.eos_ids, AHEAD, None) as engine:
        turns = iter(range(1, 10_000))

        def watch(scheduler: Scheduler) -> None:
            group = scheduler._group
            if next(turns) == 12 and group is not None:
                keep = [row is not scheduler.rows[0] for row in scheduler.rows]
                gone = scheduler.rows[0]
                group.filter_rows(keep)
                scheduler.reject(gone, RuntimeError("left"))
                armed.append(True)
                try:
                    group.flush()
                except RuntimeError as error:
                    scheduler._close_group(error)
                scheduler._notify()

        watch_steps(engine, watch)
        served = run_jobs(engine, jobs(40, count=3), timeout=20)
        assert {got.reason for got in served.values()} == {"error"}
        assert leftovers(engine) == []


@pytest.mark.parametrize("drafter", [None, DeviceOracleDrafter])
@pytest.mark.parametrize("turn", range(3, 12, 2))
def test_14_an_engine_closed_with_a_round_in_flight_ends_every_request(drafter: Any, turn: int) -> None:
    provider = None if drafter is None else drafter(DECODER.recorded)
    with open_engine(TOY, DECODER.eos_ids, AHEAD, provider) as engine:
        turns = iter(range(1, 10_000))

        def close(scheduler: Scheduler) -> None:
            if next(turns) == turn:
                scheduler._close_group(RuntimeError("closed on purpose"))
                scheduler._notify()

        watch_steps(engine, close)
        served = run_jobs(engine, jobs(), timeout=20)
        assert all(got.problems == [] and got.reason in ("error", "length") for got in served.values())
        late = [job for job in jobs() if served[job.name].reason == "length"]
        assert compare(late, DECODER, served) + leftovers(engine) == []


@pytest.mark.parametrize("depth", [1, 4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 5, 9])
def test_18_rows_that_fill_the_context_to_its_end(tokens: int, depth: int) -> None:
    full = [Job(f"job-{n}", tuple((n + place) % 60 + 1 for place in range(256 - tokens - n % 2)), greedy(tokens))
            for n in range(4)]  # fmt: skip
    for right in (0, 3):
        provider = DeviceOracleDrafter(DECODER.recorded, wrong_every=right)
        with open_engine(TOY, (), replace(AHEAD, chunk=64, depth=depth), provider) as engine:
            assert compare(full, DECODER, run_jobs(engine, full, timeout=20)) + leftovers(engine) == []


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "llama"])
@pytest.mark.parametrize(("chunk", "depth", "memory"), [(1, 8, 96), (4, 6, 128), (64, 4, None)])
def test_18_sliding_windows_and_small_pools(family: str, chunk: int, depth: int, memory: int | None) -> None:
    target, decoder = target_of(family)
    wanted = [Job(f"job-{n}", make_prompt(n, 7 + 9 * n, decoder.vocab_size), greedy(24 + n)) for n in range(5)]
    provider = DeviceOracleDrafter(decoder.recorded, wrong_every=6, ragged=False)
    setup = Setup(rows=4, chunk=chunk, depth=depth, device_round=True, kv_cache_tokens=memory)
    with open_engine(target, decoder.eos_ids, setup, provider) as engine:
        served = run_jobs(engine, wanted)
        assert compare(wanted, decoder, served) + leftovers(engine) == []
        assert engine.stats().ahead_rounds > 0


@pytest.mark.parametrize("options", [{"logit_bias": {5: 0.0}}, {"logprobs": 1}], ids=["biased", "scored"])
@pytest.mark.parametrize("late", [True, False])
def test_18_a_row_the_device_cannot_draw_for_stops_the_running_ahead_while_it_is_there(
    options: dict[str, Any], late: bool
) -> None:
    free = Job("free", (3, 4, 5), greedy(60))
    held = Job("held", (9, 8, 7), greedy(8), after=("free", 12) if late else None)
    asked = (free, replace(held, params=replace(held.params, **options)))
    with open_engine(TOY, (), AHEAD, None) as engine:
        served = run_jobs(engine, asked, timeout=20)
        assert compare((free, held), DECODER, served) + leftovers(engine) == []
        stats = engine.stats()
    assert stats.ahead_rounds > 30, "before and after it rounds run ahead"
    assert stats.flushes >= (2 if late else 1)


def test_18_stop_ids_beyond_those_the_device_holds_end_their_row_at_the_read() -> None:
    wanted = []
    for n, job in enumerate(jobs(30)):
        text = DECODER.run(job.prompt, job.params).tokens
        never = tuple(token for token in range(1, 60) if token not in text)[:DEVICE_EOS_IDS]
        assert len(never) == DEVICE_EOS_IDS
        params = replace(job.params, stop_token_ids=(*never, text[4 + 3 * n]))
        wanted.append(replace(job, params=params))
    for provider in (None, DeviceOracleDrafter(DECODER.recorded, wrong_every=0)):
        with open_engine(TOY, (), AHEAD, provider) as engine:
            served = run_jobs(engine, wanted, timeout=20)
            assert compare(wanted, DECODER, served) + leftovers(engine) == []
            assert any(got.reason == "stop" for got in served.values())
            assert engine.stats().dropped_positions > 0


@pytest.mark.parametrize("drafter", [None, DeviceOracleDrafter])
@pytest.mark.parametrize("tokens", [None, 64, 96])
def test_18_samples_of_one_prompt_run_ahead_together(drafter: Any, tokens: int | None) -> None:
    prompt, params = tuple(range(1, 41)), replace(greedy(24), temperature=0.8, seed=5)
    provider = None if drafter is None else drafter(DECODER.recorded)
    with open_engine(TOY, (), replace(AHEAD, rows=4, kv_cache_tokens=tokens), provider) as engine:
        collectors = [Collector() for _ in range(5)]
        names = engine.add_samples(prompt, params, collectors, "family")
        for got in collectors:
            got.wait(20)
        asked = [Job(name, prompt, replace(params, seed=5 + n)) for n, name in enumerate(names)]
        assert compare(asked, DECODER, dict(zip(names, collectors, strict=True))) + leftovers(engine) == []
        assert engine.stats().ahead_rounds > 10


@pytest.mark.parametrize("costs", ["cheap", "fair", "dear"])
def test_5_commits_of_the_device_follow_whatever_the_gate_decides(costs: str) -> None:
    """A device drafter hears of every window, also of those in which it proposed nothing."""
    missed: list[str] = []

    def check(scheduler: Scheduler) -> None:
        group = scheduler._group
        if group is None:
            return
        group.flush()
        scheduler._notify()
        tables = group.parts.tables
        missed.extend(row.request.id for row in scheduler.rows if int(tables.draft_length[row.index]) != row.length)

    with open_engine(TOY, (), replace(AHEAD, costs=COSTS[costs]), DeviceOracleDrafter(DECODER.recorded)) as engine:
        watch_steps(engine, check)
        assert compare(jobs(40), DECODER, run_jobs(engine, jobs(40), timeout=20)) == []
    assert missed == []


def spans_and_lookups() -> tuple[Job, ...]:
    """Rows with predictions beside rows that a lookup drafts for, of different lengths."""
    wanted = []
    for n, job in enumerate(jobs(40)):
        text = DECODER.run(job.prompt, job.params).tokens
        spoilt = (*text[: 9 + n], 1, 1, *text[9 + n :])
        params = replace(job.params, prediction=spoilt) if n % 2 else job.params
        wanted.append(replace(job, params=params))
    return tuple(wanted)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_5_spans_lookups_and_plain_rows_count_the_same_in_every_order(make: Callable[[], DraftProvider]) -> None:
    asked = spans_and_lookups()
    ahead, device, host = (
        serve(replace(AHEAD, rows=5, device_round=on, run_ahead=run), asked, make())
        for on, run in ((True, True), (True, False), (False, False))
    )
    for job in asked:
        mine = ahead[job.name]
        for other in (device[job.name], host[job.name]):
            assert (mine.tokens, mine.reason, mine.bursts) == (other.tokens, other.reason, other.bursts), job.name
            assert (mine.spec, mine.fill) == (other.spec, other.fill), job.name
