"""Runs requests through a real engine over a given target and compares what came out with plain decoding.

Jobs may join while others decode and leave early (a consumer stops, raises, aborts). It knows no drafter and no model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..core.config import EngineConfig
from ..core.costs import CostTable
from ..core.request import SamplingParams
from ..draft.base import DraftProvider
from ..engine.build import Extras, assemble
from ..engine.engine import Engine
from ..engine.graph_backend import GraphBackend
from ..engine.scheduler import Scheduler
from .collect import Behaviour, Collector
from .reference import PlainDecoder, PlainRun


@dataclass(frozen=True)
class Setup:
    """Settings of one engine. ``chunk``: prompt tokens of one prefill forward. ``method`` names a drafter of the
    registry where no provider is given. ``device_round=None`` leaves the choice to the engine. ``costs``: choose depths
    by them (default: every row drafts at its cap). ``fill_span``: widest window of a copied span, 0 = none.
    ``graphs``: record device rounds with this."""

    rows: int = 8
    chunk: int = 512
    depth: int = 4
    device_round: bool | None = None
    kv_cache_tokens: int | None = None
    method: str = "none"
    preempt_ram_bytes: int | None = None
    coupling: str = "gumbel"
    run_ahead: bool = True
    costs: CostTable | None = None
    fill_span: int = 32
    graphs: GraphBackend | None = None

    def config(self) -> EngineConfig:
        return EngineConfig.build(
            environ={},
            dtype="float64",
            device="cpu",
            max_num_seqs=self.rows,
            max_num_batched_tokens=self.chunk,
            spec_tokens=self.depth,
            spec_method=self.method,
            device_round=self.device_round,
            kv_cache_tokens=self.kv_cache_tokens,
            preempt_ram_bytes=self.preempt_ram_bytes,
            coupling=self.coupling,
            run_ahead=self.run_ahead,
            fill_span=self.fill_span,
            spec_adaptive=self.costs is not None,
        )


@dataclass(frozen=True)
class Job:
    """One request. ``after=(other, n)``: submitted on the engine thread once job ``other`` has n tokens or has ended;
    otherwise at the start, in order."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    behaviour: Behaviour = field(default_factory=Behaviour)
    after: tuple[str, int] | None = None


@contextmanager
def open_engine(
    target: Any, eos_ids: Sequence[int], setup: Setup, drafter: DraftProvider | None = None
) -> Iterator[Engine]:
    """A running engine over ``target`` (anything with the port of ``TargetBinding``), closed at the end."""
    extras = Extras(costs=setup.costs, graphs=setup.graphs)
    engine = assemble(setup.config(), target, tuple(eos_ids), drafter=drafter, extras=extras)
    try:
        yield engine
    finally:
        engine.close()


def run_jobs(engine: Engine, jobs: Sequence[Job], timeout: float = 60.0) -> dict[str, Collector]:
    """Serve all jobs to their end; raises ``TimeoutError`` if one does not end, and what a late submission raised."""
    submission = _Submission(engine, jobs)
    submission.start()
    for job in jobs:
        submission.collectors[job.name].wait(timeout)
        if submission.errors:
            raise submission.errors[0]
    return submission.collectors


class _Submission:
    """Submits jobs when their time has come, whichever thread notices."""

    def __init__(self, engine: Engine, jobs: Sequence[Job]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting = {job.name: job for job in jobs if job.after is not None}
        self._first = [job for job in jobs if job.after is None]
        self.errors: list[Exception] = []
        self.collectors = {job.name: self._collector(job) for job in jobs}

    def _collector(self, job: Job) -> Collector:
        return Collector(job.behaviour, lambda count: self._advanced(job.name, count))

    def start(self) -> None:
        for job in self._first:
            self._submit(job)

    def _submit(self, job: Job) -> None:
        self._engine.add_request(job.prompt, job.params, self.collectors[job.name], job.name)

    def _advanced(self, name: str, count: int) -> None:
        with self._lock:
            due = [
                job for job in self._waiting.values() if job.after and job.after[0] == name and count >= job.after[1]
            ]
            for job in due:
                del self._waiting[job.name]
        for job in due:
            try:
                self._submit(job)
            except Exception as error:
                self.errors.append(error)
                self.collectors[job.name].give_up()


def differences(job: Job, run: PlainRun, got: Collector) -> list[str]:
    """Where a served job departs from its plain run: tokens, finish reason, count, statistics, foul play."""
    found = [f"{job.name}: {problem}" for problem in got.problems]
    expected = run.tokens
    reason: str = run.finish_reason
    generated = run.generated
    wish = job.behaviour
    if wish.stop_after is not None:
        cut = run.stopped_after(wish.stop_after)
        expected, reason, generated = cut.tokens, cut.finish_reason, cut.generated
    elif wish.raise_after is not None and wish.raise_after <= len(expected):
        expected, reason, generated = expected[: wish.raise_after], "error", wish.raise_after
    elif wish.abort_after is not None and wish.abort_after <= len(expected):
        taken = max(len(got.tokens), wish.abort_after)
        expected, reason, generated = expected[:taken], "abort", taken
    if tuple(got.tokens) != expected:
        found.append(f"{job.name}: tokens differ {_first_difference(expected, got.tokens)}")
    if got.text is not None and got.text != (*job.prompt, *got.tokens):
        found.append(f"{job.name}: the row's text is not prompt and delivered tokens: {got.text}")
    if got.reason != reason:
        error = got.finished.error if got.finished else None
        found.append(f"{job.name}: finish reason {got.reason!r} ({error!r}), expected {reason!r}")
    if got.generated != generated:
        found.append(f"{job.name}: generated {got.generated}, expected {generated}")
    return found + _statistics(job, got)


def _statistics(job: Job, got: Collector) -> list[str]:
    try:
        got.spec.check()
    except AssertionError as error:
        return [f"{job.name}: statistics identity {error} does not hold: {got.spec}"]
    if got.spec.generated != got.generated:
        return [f"{job.name}: statistics count {got.spec.generated} generated tokens, the row {got.generated}"]
    return []


def _first_difference(expected: Sequence[int], got: Sequence[int]) -> str:
    for place, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return f"at {place}: {b} instead of {a}, {len(got)} tokens of {len(expected)}"
    return f"in number: {len(got)} instead of {len(expected)}"


def watch_steps(engine: Engine, check: Callable[[Scheduler], None]) -> list[str]:
    """Call ``check`` on the engine thread after every turn of the scheduler; what it asserts goes into the result.

    Call it before the first request. The list fills while the engine works.
    """
    scheduler = engine._scheduler
    original, found = scheduler.step, []

    def step() -> None:
        original()
        try:
            check(scheduler)
        except AssertionError as error:
            found.append(str(error) or repr(error))

    scheduler.step = step  # type: ignore[method-assign]
    return found


def compare(jobs: Sequence[Job], decoder: PlainDecoder, served: Mapping[str, Collector]) -> list[str]:
    """All differences of served jobs from plain decoding."""
    return [line for job in jobs for line in differences(job, decoder.run(job.prompt, job.params), served[job.name])]


def leftovers(engine: Engine) -> list[str]:
    """What an engine without live requests still holds: blocks, indices, load figures. Empty when all is given back."""
    scheduler = engine._scheduler
    tables = scheduler._parts.tables
    tables.check_integrity()
    found = [
        f"{pool.usable_blocks - pool.free_blocks} blocks of group {name} are still held"
        for name, pool in tables.pools.items()
        if pool.free_blocks != pool.usable_blocks
    ]
    held = tables.max_rows - tables.free_indices - (tables.padding is not None)
    if held:
        found.append(f"{held} row indices are still held")
    figures = {
        name: getattr(scheduler, name) for name in ("num_running", "num_waiting", "running_tokens", "token_weight")
    }
    return found + [f"{name} is {value}, not 0" for name, value in figures.items() if value]
