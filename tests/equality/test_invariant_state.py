"""Invariants 9, 16 and 17: after every turn, tables, cache cells, host mirror and drafter agree, row by row.

The toy target keeps the token and position of every input in its cache cells, so a row's state can be read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
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
    scenarios,
    serve,
    setups,
)

import paceline.engine.build as build_module
import paceline.engine.drafting as drafting_module
import paceline.engine.settlement as settlement_module
from paceline.cache.columns import RowColumns
from paceline.cache.family import FamilyCache
from paceline.cache.tables import RowTables
from paceline.core.ports import CachedPrefix
from paceline.core.request import Request
from paceline.core.row import Row
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Behaviour
from paceline.testing.harness import Job, Setup, open_engine, run_jobs, watch_steps
from paceline.testing.watch import WatchedDrafter


def cells_of(tables: RowTables, row: Row) -> tuple[list[int], list[int]]:
    """Tokens and positions in the cache cells of a row's inputs."""
    assert tables.store is not None
    size = tables.block_size
    places = torch.arange(row.length)
    blocks = torch.tensor(tables.blocks(row.index, "full"))
    cells = tables.store.keys(0)[blocks[places // size] * size + places % size, 0]
    return cells[:, 0].to(torch.int64).tolist(), cells[:, 1].to(torch.int64).tolist()


def check_row(tables: RowTables, row: Row) -> None:
    """Invariant 9 for one decoding row: its state holds everything before the pending token, and not that."""
    name, index, known = row.request.id, row.index, row.tokens
    assert row.pending == known[-1], f"{name}: pending is not the newest token"
    assert row.length == len(known) - 1, f"{name}: {row.length} inputs, {len(known)} known tokens"
    assert tables.covered(index) >= row.length, f"{name}: blocks for {tables.covered(index)} of {row.length} inputs"
    tokens, positions = cells_of(tables, row)
    assert tokens == known[:-1], f"{name}: the cells hold {tokens}, the text is {known}"
    assert positions == list(range(row.length)), f"{name}: cells of other positions: {positions}"
    columns = {column: int(getattr(tables, column)[index]) for column in ("pending", "length", "step", "remaining")}
    mirror = {"pending": row.pending, "length": row.length, "step": row.step, "remaining": row.remaining}
    assert columns == mirror, f"{name}: columns {columns}, mirror {mirror}"
    assert bool(tables.live[index]), f"{name} is not live"
    history = tables.history[index, : len(known)].tolist()
    assert history == known, f"{name}: history {history}, text {known}"


def state_problems(scenario: Scenario) -> list[str]:
    """Run a scenario and check every decoding row after every turn."""
    watched = WatchedDrafter(make_drafter(scenario.drafter, DECODER))
    # a drafter that goes by the text is not told of device rounds
    tables_lead = scenario.setup.device_round is True

    def check(scheduler: Scheduler) -> None:
        tables = scheduler._parts.tables
        tables.check_integrity(scheduler._families.references())
        for row in scheduler.rows:
            check_row(tables, row)
            told = watched.rows.get(row.request.id)
            if row.request.draft_cap:
                assert told is not None and told.covered <= row.length, f"{row.request.id}: drafter covers {told}"
                behind = scheduler._group is not None and scheduler._group.drafter.lags and tables_lead
                assert behind or told.covered == row.length, f"{row.request.id}: drafter covers {told}"

    # rounds that run ahead are checked the same way after a flush, in test_invariant_ahead
    with open_engine(TOY, (), replace(scenario.setup, run_ahead=False), watched) as engine:
        found = watch_steps(engine, check)
        run_jobs(engine, scenario.jobs, timeout=20)
    return found + watched.problems


@given(scenarios())
@settings(max_examples=40)
def test_9_state_is_aligned_after_every_turn(scenario: Scenario) -> None:
    assert state_problems(scenario) == []


def telling(device_round: bool) -> Scenario:
    jobs = tuple(Job(f"job-{n}", tuple(range(n + 1, n + 20)), greedy(14)) for n in range(4))
    return Scenario(Setup(rows=3, chunk=7, depth=3, device_round=device_round), jobs, "ragged")


@pytest.mark.parametrize("device_round", [True, False])
def test_9_the_telling_scenario_is_aligned(device_round: bool) -> None:
    assert state_problems(telling(device_round)) == []


@pytest.mark.parametrize("column", ["length", "step", "remaining"])
@pytest.mark.parametrize("device_round", [True, False])
def test_9_catches_a_column_that_is_one_off(column: str, device_round: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = settlement_module.Settlement._commit

    def commit(self, verified, rows, outcomes):  # type: ignore[no-untyped-def]
        original(self, verified, rows, outcomes)
        getattr(self._parts.tables, column)[rows[0].index] += 1

    monkeypatch.setattr(settlement_module.Settlement, "_commit", commit)
    assert any("columns" in problem for problem in state_problems(telling(device_round)))


def test_9_catches_a_drafter_told_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    original = drafting_module.GuardedDrafter.commit

    def commit(self, batch, window, accepted):  # type: ignore[no-untyped-def]
        original(self, batch, window, [min(count + 1, 3) for count in accepted])

    monkeypatch.setattr(drafting_module.GuardedDrafter, "commit", commit)
    assert state_problems(telling(False))


class KeepingCache(FamilyCache):
    """Keeps every request and records what is published for it; restores nothing and gives the blocks back at once."""

    def __init__(self, tables: RowTables, published: list[tuple[Request, tuple[int, ...], CachedPrefix]]) -> None:
        super().__init__(tables)
        self._published = published

    def keeps(self, request: Request) -> bool:
        return True

    def acquire(self, request: Request, namespace: str, prompt: Sequence[int]) -> None:
        return None

    def publish(self, request: Request, namespace: str, tokens: Sequence[int], prefix: CachedPrefix) -> None:
        self._published.append((request, tuple(tokens), prefix))
        self._tables.unshare(prefix.blocks)


@given(setups(), job_lists(most=4), st.sampled_from(DRAFTERS))
@settings(max_examples=30)
def test_9_an_ended_row_covers_its_prompt_and_what_was_delivered(
    setup: Setup, jobs: tuple[Job, ...], drafter: str
) -> None:
    published: list[tuple[Request, tuple[int, ...], CachedPrefix]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "FamilyCache", lambda tables: KeepingCache(tables, published))
        served = serve(setup, jobs, make_drafter(drafter, DECODER))
    for job in jobs:
        got = served[job.name]
        entries = [(tokens, prefix) for request, tokens, prefix in published if request.id == job.name]
        text = (*job.prompt, *got.tokens)
        for tokens, prefix in entries:
            assert prefix.length == len(tokens)
            assert tokens == text[: len(tokens)], "only prompt and delivered tokens, in order"
        if got.reason in ("stop", "length"):
            assert len(entries[-1][0]) >= len(text) - 1, "at most the last delivered token is missing"
            assert len(entries[-1][0]) == got.length, "what is published is what the state holds"
        else:
            assert all(len(tokens) <= len(job.prompt) for tokens, _ in entries), "nothing for failed or cancelled rows"


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("stop_after", range(1, 9))
def test_9_a_consumer_that_stops_inside_a_burst_leaves_only_delivered_inputs(
    stop_after: int, device_round: bool
) -> None:
    published: list[tuple[Request, tuple[int, ...], CachedPrefix]] = []
    job = Job("stops", (5, 6, 7), greedy(16), Behaviour(stop_after=stop_after))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "FamilyCache", lambda tables: KeepingCache(tables, published))
        setup = Setup(depth=6, device_round=device_round)
        got = serve(setup, (job,), make_drafter("oracle", DECODER))["stops"]
    assert published[-1][1] == (*job.prompt, *got.tokens)[: got.length]
    assert len(job.prompt) + stop_after - 1 <= got.length <= len(job.prompt) + stop_after


def order_problems(scenario: Scenario) -> list[str]:
    """Run a scenario and check the row order and the indices after every turn (invariant 16)."""
    before: list[str] = []
    indices: dict[str, int] = {}

    def check(scheduler: Scheduler) -> None:
        rows = scheduler.rows
        names = [row.request.id for row in rows]
        stayed = [name for name in before if name in names]
        assert names[: len(stayed)] == stayed, f"order changed: {before} then {names}"
        for row in rows:
            assert indices.setdefault(row.request.id, row.index) == row.index, f"{row.request.id} changed its index"
        preparing = scheduler._preparation.rows if scheduler._preparation else []
        used = [row.index for row in [*rows, *preparing]]
        assert len(set(used)) == len(used), f"indices are shared: {used}"
        waiting = scheduler._group._deferred if scheduler._group else []  # for a round in flight to be read
        assert sorted([*used, *waiting]) == scheduler._parts.tables.indices_in_use, (
            "an index is in use without a row, or the reverse"
        )
        before[:] = names

    with open_engine(TOY, (), scenario.setup, make_drafter(scenario.drafter, DECODER)) as engine:
        found = watch_steps(engine, check)
        run_jobs(engine, scenario.jobs, timeout=20)
    return found


LEAVING = tuple(
    Job(f"job-{n}", (n + 1, n + 2, n + 3), greedy(3 + 4 * n % 11), Behaviour(), None if n < 3 else (f"job-{n - 3}", 2))
    for n in range(8)
)


@given(scenarios())
@settings(max_examples=30)
def test_16_rows_keep_their_order_and_their_index(scenario: Scenario) -> None:
    assert order_problems(scenario) == []


@pytest.mark.parametrize("fault", ["filter reverses", "join puts first"])
def test_16_catches_a_host_that_reorders(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filter_rows = Scheduler.filter_rows

    def reversing(self, keep):  # type: ignore[no-untyped-def]
        filter_rows(self, keep)
        self._rows.reverse()

    def putting_first(self, row):  # type: ignore[no-untyped-def]
        self._rows.insert(0, row)

    if fault == "filter reverses":
        monkeypatch.setattr(Scheduler, "filter_rows", reversing)
    else:
        monkeypatch.setattr(Scheduler, "join", putting_first)
    assert order_problems(Scenario(Setup(rows=4, depth=2), LEAVING, "ragged"))


def test_16_catches_an_index_freed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RowColumns.acquire_index

    def sharing(self):  # type: ignore[no-untyped-def]
        index = original(self)
        if len(self.indices_in_use) == 3 and index is not None:
            self._free_indices.append(index)
            self._free_indices.sort()
        return index

    monkeypatch.setattr(RowColumns, "acquire_index", sharing)
    assert order_problems(Scenario(Setup(rows=4, depth=2), LEAVING, "none"))


def final_cells(jobs: tuple[Job, ...], watch: str, drafter: str) -> list[tuple[list[int], list[int]]]:
    """The cells of row ``watch`` after each turn in which it decodes."""
    seen: list[tuple[list[int], list[int]]] = []

    def note(scheduler: Scheduler) -> None:
        for row in scheduler.rows:
            if row.request.id == watch:
                cells = cells_of(scheduler._parts.tables, row)
                if not seen or cells != seen[-1]:
                    seen.append(cells)

    with open_engine(TOY, (), Setup(rows=4, depth=3), make_drafter(drafter, DECODER)) as engine:
        watch_steps(engine, note)
        run_jobs(engine, jobs, timeout=20)
    return seen


def leaving_neighbours(count: int, behaviour: Behaviour) -> tuple[Job, ...]:
    stays = Job("stays", (9, 8, 7), greedy(20))
    others = [Job(f"leaves-{n}", (n + 1,) * (n + 2), greedy(4 + n), behaviour) for n in range(count)]
    return (*others[:1], stays, *others[1:])


@pytest.mark.parametrize("drafter", ["none", "oracle", "ragged", "adversarial"])
@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(stop_after=2), Behaviour(raise_after=3)])
def test_17_filtering_then_continuing_is_never_having_had_the_rows(behaviour: Behaviour, drafter: str) -> None:
    with_others = final_cells(leaving_neighbours(3, behaviour), "stays", drafter)
    alone = final_cells(leaving_neighbours(0, behaviour), "stays", drafter)
    assert with_others == alone
    assert len(alone) > 2


def test_17_catches_a_filter_that_drops_the_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RowTables.release

    def release(self, index, clear=False):  # type: ignore[no-untyped-def]
        """Zeroes the first block of the next row too."""
        store = self.store
        for other in self.indices_in_use:
            if other != index and self.blocks(other, "full"):
                store.clear_blocks("full", self.blocks(other, "full")[:1])
        original(self, index, clear)

    monkeypatch.setattr(RowTables, "release", release)
    behaviour = Behaviour(stop_after=2)
    with_others = final_cells(leaving_neighbours(3, behaviour), "stays", "ragged")
    assert with_others != final_cells(leaving_neighbours(0, behaviour), "stays", "ragged")
