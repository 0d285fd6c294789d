"""Invariants 14 and 15: a failure surfaces once, costs what table 16.1 says, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scenarios import DECODER, greedy, make_drafter

import paceline.engine.drafting as drafting_module
import paceline.engine.preparation as preparation_module
from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.pool import BlockPool
from paceline.cache.tables import RowTables
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.core.transaction import StateChange, apply_state_changes
from paceline.engine.draws import RowSampler
from paceline.engine.engine import Engine
from paceline.engine.membership import MembershipJoin, TargetJoin
from paceline.testing.collect import Collector
from paceline.testing.faulty import BREACHES, METHODS, Breach, FailingDrafter, Method, OutOfContractDrafter
from paceline.testing.grid import target_of
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.toy import ToyTarget


class Injected(RuntimeError):
    """The failure that a test plants."""


class AtCall:
    """Raises :class:`Injected` at one call of its name, counted from 1."""

    def __init__(self, name: str, call: int) -> None:
        self.name, self.call, self.calls, self.raised = name, call, 0, 0

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.calls += 1
            if self.calls == self.call:
                self.raised += 1
                raise Injected(f"{name}, call {self.call}")


JOBS = tuple(
    Job(
        f"job-{n}",
        tuple(range(n + 1, n + 7)),
        SamplingParams(max_tokens=8 + n, temperature=0.0 if n % 2 else 0.9, seed=n),
        after=None if n < 3 else (f"job-{n - 3}", 3),
    )
    for n in range(6)
)


def planted(method: Callable[..., Any], fault: AtCall, name: str) -> Callable[..., Any]:
    """``method`` with the fault in front."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fault(name)
        return method(*args, **kwargs)

    return wrapped


def is_planted(error: BaseException | None) -> bool:
    """Whether ``error`` is the planted failure, or says that it was the cause."""
    return error is not None and (isinstance(error, Injected) or "Injected(" in str(error))


def check_contained(engine: Engine, served: dict[str, Collector], fault: AtCall) -> None:
    """Every request ended once: as in plain decoding, or with the planted error after a prefix of it."""
    touched = 0
    for job in JOBS:
        got, run = served[job.name], DECODER.run(job.prompt, job.params)
        assert got.problems == []
        if got.reason == "error":
            assert got.finished is not None and is_planted(got.finished.error)
            assert tuple(got.tokens) == run.tokens[: len(got.tokens)]
            touched += 1
        else:
            assert compare([job], DECODER, {job.name: got}) == []
    assert bool(touched) == bool(fault.raised), "the failure surfaced iff it happened"
    assert fault.raised <= 1
    assert leftovers(engine) == []
    assert sum(engine.stats().finished.values()) == len(JOBS)
    fault.call = 0  # what has not happened by now shall not
    fresh = run_jobs(engine, [Job("fresh", (9, 9, 9), greedy(6))])
    assert compare([Job("fresh", (9, 9, 9), greedy(6))], DECODER, fresh) == [], "the engine still serves"


@given(st.sampled_from(["forward", "logits"]), st.integers(1, 20), st.booleans(), st.sampled_from(["none", "ragged"]))
@settings(max_examples=40)
def test_14_a_failing_target_call(name: str, call: int, device_round: bool, drafter: str) -> None:
    target, fault = ToyTarget(), AtCall(name, call)
    target.before = fault
    with open_engine(target, (), Setup(rows=3, device_round=device_round), make_drafter(drafter, DECODER)) as engine:
        check_contained(engine, run_jobs(engine, JOBS, timeout=20), fault)


FAULTS = [
    (RowSampler, "draw_window"),
    (RowTables, "reserve"),
    (RowTables, "forward_batch"),
    (RowTables, "trim"),
    (RowTables, "write_mirror"),
    (RowTables, "append_draws"),
    (RowTables, "acquire_index"),
    (RowTables, "write_row"),
]


@pytest.mark.parametrize(("owner", "name"), FAULTS)
@pytest.mark.parametrize("call", [1, 2, 5, 9])
@pytest.mark.parametrize("device_round", [True, False])
def test_14_a_failing_sampling_or_cache_call(
    owner: type, name: str, call: int, device_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = AtCall(name, call)
    monkeypatch.setattr(owner, name, planted(getattr(owner, name), fault, name))
    drafter = make_drafter("ragged", DECODER)
    with open_engine(ToyTarget(), (), Setup(rows=3, device_round=device_round), drafter) as engine:
        check_contained(engine, run_jobs(engine, JOBS, timeout=20), fault)


@pytest.mark.parametrize("name", ["release", "release_index"])
def test_14_a_failing_release_still_ends_every_request_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = AtCall(name, 2)
    original = getattr(RowTables, name)

    def release(self: RowTables, *args: Any) -> None:
        original(self, *args)
        fault(name)

    monkeypatch.setattr(RowTables, name, release)
    with open_engine(ToyTarget(), (), Setup(rows=3), make_drafter("oracle", DECODER)) as engine:
        served = run_jobs(engine, JOBS, timeout=20)
        assert all(got.problems == [] for got in served.values())
        assert leftovers(engine) == []
        assert sum(engine.stats().finished.values()) == len(JOBS)


def test_14_catches_a_release_that_forgets_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = AtCall("forward", 4)
    target = ToyTarget()
    target.before = fault
    monkeypatch.setattr(RowTables, "release_index", lambda self, index: None)
    with open_engine(target, (), Setup(rows=6)) as engine:
        run_jobs(engine, JOBS, timeout=20)
        assert any("indices" in line for line in leftovers(engine))


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_14_a_failing_drafter_changes_no_stream_and_closes_nothing(method: Method, call: int) -> None:
    call += method in ("open", "close")  # the first ones belong to the trial opening at start
    drafter = FailingDrafter(make_drafter("oracle", DECODER), method, call)
    with open_engine(ToyTarget(), (), Setup(rows=3), drafter) as engine:
        served = run_jobs(engine, JOBS, timeout=20)
        assert compare(JOBS, DECODER, served) == []
        assert leftovers(engine) == []
        assert engine.stats().drafter_failures == drafter.raised
        failure = engine.info()["drafter_failure"]
        assert ("DrafterBroke" in str(failure)) == bool(drafter.raised)


@pytest.mark.parametrize("method", ["draft", "commit", "prefill"])
def test_14_rows_that_come_after_a_failure_are_drafted_again(method: Method) -> None:
    drafter = FailingDrafter(make_drafter("oracle", DECODER), method, 1)
    with open_engine(ToyTarget(), (), Setup(rows=1), drafter) as engine:
        first = run_jobs(engine, [Job("first", (1, 2), greedy(9))])["first"]
        second = run_jobs(engine, [Job("second", (3, 4), greedy(9))])["second"]
    assert drafter.raised == 1
    assert first.spec.drafted <= 4 and second.spec.accepted > 0


@pytest.mark.parametrize("breach", BREACHES)
@pytest.mark.parametrize("device_round", [True, False])
def test_14_a_drafter_out_of_contract_changes_no_stream(breach: Breach, device_round: bool) -> None:
    drafter = OutOfContractDrafter(breach)
    with open_engine(ToyTarget(), (), Setup(rows=3, device_round=device_round), drafter) as engine:
        assert compare(JOBS, DECODER, run_jobs(engine, JOBS, timeout=20)) == []
        assert leftovers(engine) == []
        drafted = engine.stats().depth_histogram
    assert drafter.asked > 0
    assert max(drafted) <= 4, "no window is wider than the depth"


@pytest.mark.parametrize("breach", BREACHES)
def test_14_a_real_model_never_sees_what_a_drafter_out_of_contract_proposes(breach: Breach) -> None:
    target, decoder = target_of("llama")
    jobs = [Job(f"job-{n}", (n + 5, n + 6, n + 7), greedy(8)) for n in range(3)]
    with open_engine(target, decoder.eos_ids, Setup(rows=3), OutOfContractDrafter(breach)) as engine:
        assert compare(jobs, decoder, run_jobs(engine, jobs)) == []
        assert leftovers(engine) == []


def test_14_catches_a_drafter_that_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def unguarded(self, rows, call):  # type: ignore[no-untyped-def]
        call()
        return True

    monkeypatch.setattr(drafting_module.GuardedDrafter, "_guard", unguarded)
    drafter = FailingDrafter(make_drafter("oracle", DECODER), "draft", 2)
    with open_engine(ToyTarget(), (), Setup(rows=3), drafter) as engine:
        assert compare(JOBS, DECODER, run_jobs(engine, JOBS, timeout=20))


@pytest.mark.parametrize("poisoned", [0, 2])
@pytest.mark.parametrize("device_round", [True, False])
def test_14_non_finite_logits_end_their_own_row(poisoned: int, device_round: bool) -> None:
    target = ToyTarget()
    job = JOBS[poisoned]
    target.poison.add((job.prompt[0], len(job.prompt) + 3))
    with open_engine(target, (), Setup(rows=3, device_round=device_round), make_drafter("none", DECODER)) as engine:
        served = run_jobs(engine, JOBS, timeout=20)
        got = served.pop(job.name)
        assert compare([other for other in JOBS if other is not job], DECODER, served) == []
        assert got.reason == "error" and "finite" in str(got.finished)
        assert tuple(got.tokens) == DECODER.run(job.prompt, job.params).tokens[: len(got.tokens)]
        assert engine.stats().bad_rows == 1
        assert leftovers(engine) == []


# -- 15: transactional join ------------------------------------------------------------------------------------------


def tables_with_row() -> tuple[RowTables, Row]:
    """Tables in which one row has prefilled its 16 prompt tokens, exactly one block."""
    group = BlockGroupSpec("full", (LayerKV(0, 1, 2, 1),))
    tables = RowTables(2, 64, [group], {"full": BlockPool(8, 16)}, None)
    index = tables.acquire_index()
    assert index is not None
    request = Request("r", tuple(range(16)), SamplingParams(max_tokens=20), 20, (), seed=0, draft_cap=4)
    row = Row(request, index, [*request.prompt_ids, 7], pending=7, step=1, length=16, generated=1)
    tables.reserve(index, 16)
    return tables, row


class Parts:
    """What a target join needs of the engine's parts."""

    def __init__(self, tables: RowTables) -> None:
        self.tables = tables

    def free_behind_window(self, row: Row, length: int) -> None:
        return None


class Note:
    """A change that records what happened to it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def commit(self) -> None:
        self.log.append("commit")

    def undo(self) -> None:
        self.log.append("undo")


def snapshot(tables: RowTables, row: Row) -> tuple[Any, ...]:
    columns = tuple(getattr(tables, name).tolist() for name in ("pending", "length", "step", "remaining", "live"))
    return columns, tables.blocks(row.index, "full"), tables.pools["full"].free_blocks, vars(row).copy()


def join(prepares: list[Callable[[], StateChange]]) -> None:
    apply_state_changes(prepares)


def failing_prepare() -> StateChange:
    raise Injected("membership")


def test_15_a_failed_prepare_leaves_tables_and_row_as_they_were() -> None:
    tables, row = tables_with_row()
    before, log = snapshot(tables, row), []  # type: ignore[var-annotated]
    parts: Any = Parts(tables)
    with pytest.raises(Injected):
        join([lambda: TargetJoin(parts, row, 5), lambda: Note(log), failing_prepare])
    assert snapshot(tables, row) == before
    assert log == ["undo"]
    tables.check_integrity()


def test_15_a_whole_join_commits_everything() -> None:
    tables, row = tables_with_row()
    log: list[str] = []
    registered: list[Any] = []
    parts: Any = Parts(tables)
    state: Any = object()
    join([lambda: TargetJoin(parts, row, 5), lambda: Note(log), lambda: MembershipJoin(registered.append, state)])
    assert log == ["commit"] and registered == [state]
    assert len(tables.blocks(row.index, "full")) == 2 and int(tables.pending[row.index]) == 7


def test_15_catches_a_join_that_does_not_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetJoin, "undo", lambda self: None)
    tables, row = tables_with_row()
    before = snapshot(tables, row)
    parts: Any = Parts(tables)
    with pytest.raises(Injected):
        join([lambda: TargetJoin(parts, row, 5), failing_prepare])
    assert snapshot(tables, row) != before


@pytest.mark.parametrize("which", ["TargetJoin", "MembershipJoin"])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_15_a_failed_join_costs_its_own_row_only(which: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = AtCall(which, call)
    monkeypatch.setattr(preparation_module, which, planted(getattr(preparation_module, which), fault, which))
    drafter = make_drafter("oracle", DECODER)
    with open_engine(ToyTarget(), (), Setup(rows=3), drafter) as engine:
        served = run_jobs(engine, JOBS, timeout=20)
        check_contained(engine, served, fault)
        assert [got.reason for got in served.values()].count("error") == fault.raised == 1


def test_15_a_drafter_that_cannot_join_loses_its_row_only() -> None:
    drafter = FailingDrafter(make_drafter("oracle", DECODER), "prepare_join", 2)
    with open_engine(ToyTarget(), (), Setup(rows=3), drafter) as engine:
        served = run_jobs(engine, JOBS, timeout=20)
    assert compare(JOBS, DECODER, served) == []
    assert sum(got.spec.drafted == 0 for got in served.values()) == 1
