"""What rounds and drafts cost on this device, measured once and kept on disk (spec 11.4). Decides nothing by it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import __version__
from ..core.costs import CostTable
from ..core.errors import DraftError, OutOfBlocks
from ..core.stats import EngineStats
from ..draft.base import DraftProvider, DraftRows, NullDrafter, TargetView
from .cost_cache import CostCache, CostKey
from .cost_grids import CONTEXTS, Plan, Reach, contexts_within, cost_table, draft_plan, verify_plan
from .device_round import RoundMachine
from .drafting import GuardedDrafter
from .draws import RowSampler
from .launch import EagerLauncher, Launcher
from .launch_probes import LaunchedDrafts, LaunchProbe
from .machine import device_name
from .probes import DraftProbe, DummyRows, Features, NothingForced, OpenedRows, TargetProbe
from .state import EngineParts
from .sweep import Effort, Point, Report, RunPoint, sweep

#: ``progress(message, done, total)``, as loading reports.
Progress = Callable[[str, int, int], None]

_LOG = logging.getLogger("paceline.costs")
_STAGE = "Measuring costs"
_FAIR_ERROR, _MOST_TRIES = 0.2, 3
_TARGET_SECONDS, _DRAFT_SECONDS = 10.0, 4.0
#: Context of a model from which on drafts are measured at a second context length too.
_ROOM = 1024


@dataclass(frozen=True)
class CostSubject:
    """What is measured: the parts of an engine in which nothing runs yet, and the drafter in use.

    ``view`` knows the row tables. ``span``: widest window of copied tokens that a row alone may verify.
    ``make_launcher``: how device rounds are run, in engines that have them.
    """

    parts: EngineParts
    provider: DraftProvider
    depth: int
    view: TargetView
    sampler: RowSampler
    span: int = 0
    make_launcher: Callable[[RoundMachine], Launcher] = EagerLauncher

    def key(self, model: str) -> CostKey:
        """Under which the table is kept; ``model`` is the artifact's name@revision."""
        target, tables = self.parts.target, self.parts.tables
        return CostKey(
            model=model,
            weight_bytes=target.weight_bytes,
            dtype=target.dtype,
            device=device_name(target.device),
            threads=torch.get_num_threads(),
            drafter=self.provider.id,
            drafter_bytes=self.provider.weight_bytes,
            depth=self.depth,
            rows=tables.free_indices,  # all but the row that fills batches, if there is one
            max_model_len=tables.max_model_len,
            device_round=self.parts.device_round,
            versions=versions(),
        )


def versions() -> tuple[str, str]:
    """Of paceline and torch: both decide what an operation costs."""
    return __version__, torch.__version__


def costs_for(
    subject: CostSubject,
    model: str | None,
    progress: Progress | None = None,
    cache: CostCache | None = None,
) -> CostTable:
    """The cost table of this subject: from disk if it was measured before, else measured now and kept.

    ``model``: the artifact's name@revision; ``None`` = always measure and keep nothing. A table whose error is large
    was measured on a machine that had other things to do: it is measured again at the next starts, a few times at
    most, and the better one is kept. Nothing of the measurement is left in the tables. Takes at most about 15 seconds.
    """
    if model is None:
        return measured_costs(subject, progress)
    store = CostCache() if cache is None else cache
    key = subject.key(model)
    known = store.load(key)
    if known is not None and (known.costs.error <= _FAIR_ERROR or known.tries >= _MOST_TRIES):
        return known.costs
    costs = measured_costs(subject, progress)
    if known is not None:
        costs = min(costs, known.costs, key=lambda table: table.error)
    store.save(key, costs, 1 if known is None else known.tries + 1)
    return costs


def kept_costs(subject: CostSubject, model: str | None, cache: CostCache | None = None) -> CostTable | None:
    """The table of an earlier measurement, for engines that choose nothing by it but report against it."""
    if model is None:
        return None
    known = (CostCache() if cache is None else cache).load(subject.key(model))
    return None if known is None else known.costs


def measured_costs(
    subject: CostSubject, progress: Progress | None = None, seconds: float = _TARGET_SECONDS
) -> CostTable:
    """Measure, with dummy rows over the real KV store. ``seconds``: how long the target may take; a drafter with a
    forward takes at most half as long again."""
    tell = progress or (lambda message, done, total: None)
    begun = time.perf_counter()
    rows = DummyRows(subject.parts.tables, subject.parts.tables.free_indices)
    try:
        with torch.inference_mode():
            verify = _verify_costs(subject, rows, seconds, lambda share: tell(_STAGE, int(share * 70), 100))
            draft = _Sweep({}, frozenset())
            if subject.depth > 0 and not subject.provider.free:
                allowed = min(_DRAFT_SECONDS, seconds / 2)
                draft = _draft_costs(subject, rows, verify, allowed) or _dear_drafts(verify, subject.depth)
    finally:
        rows.close()
    costs = cost_table(verify.seconds, draft.seconds, verify.kept_back | draft.kept_back)
    tell(_STAGE, 100, 100)
    _LOG.info(
        "measured %d costs in %.1f s; interpolation was at most %.0f %% off",
        len(verify.seconds) + len(draft.seconds),
        time.perf_counter() - begun,
        costs.error * 100,
    )
    return costs


@dataclass(frozen=True)
class _Sweep:
    """What was measured, and which of it the table must predict."""

    seconds: dict[Point, float]
    kept_back: frozenset[Point]


def _verify_costs(subject: CostSubject, rows: DummyRows, seconds: float, report: Report) -> _Sweep:
    parts = subject.parts
    longest = parts.tables.max_model_len
    widest = max(1, min(subject.depth + 1, longest))
    alone = max(widest, min(subject.span + 1, longest))
    reach = Reach(_fitting_rows(rows, widest), widest, alone, contexts_within(longest - alone))
    plan = verify_plan(reach)
    points = [point for point in plan.points if rows.fits(point)]
    run = _verify_probe(subject, rows)
    return _Sweep(sweep(points, run, Effort(seconds, plan.least), report=report), plan.kept_back)


def _verify_probe(subject: CostSubject, rows: DummyRows) -> RunPoint:
    """Rounds as this engine runs them."""
    target = subject.parts.target
    if not subject.parts.device_round:
        return TargetProbe(target, rows, subject.provider.target_taps(subject.view))
    nobody = NullDrafter().open(subject.view, subject.sampler, NothingForced())
    machine = RoundMachine(subject.parts, subject.sampler, GuardedDrafter(nobody, target.vocab_size, EngineStats()))
    return LaunchProbe(subject.make_launcher(machine), rows, target.vocab_size)


def _fitting_rows(rows: DummyRows, widest: int) -> int:
    """The most rows that can have their widest window at the shortest context; at least one."""
    context = contexts_within(rows.tables.max_model_len - widest)[0]
    count = len(rows.indices)
    while count > 1 and not rows.fits((count, widest, context)):
        count = (count + 1) // 2
    return count


def _draft_costs(subject: CostSubject, rows: DummyRows, verify: _Sweep, seconds: float) -> _Sweep | None:
    """Drafts of all numbers of rows at a short context, of one row at a longer one; ``None`` if that cannot be done."""
    begun = time.perf_counter()
    try:
        drafter = subject.provider.open(subject.view, subject.sampler, NothingForced())
        try:
            count = _fitting_rows(rows, subject.depth + 1)
            make = _Drafts(subject, drafter, rows, verify)
            found = make.sweep(count, CONTEXTS[0], seconds)
            left = seconds - (time.perf_counter() - begun)
            if left > seconds / 4 and subject.parts.tables.max_model_len >= _ROOM:
                far = make.sweep(1, CONTEXTS[1], left)
                found = _Sweep(found.seconds | far.seconds, found.kept_back | far.kept_back)
        finally:
            drafter.close()
    except Exception as error:  # whatever a drafter raises, the engine can start
        _LOG.warning("what drafter %s costs cannot be measured: %r", subject.provider.id, error)
        return None
    return found


@dataclass(frozen=True)
class _Drafts:
    """Measures an opened drafter. ``verify``: costs of windows, which whole device rounds contain."""

    subject: CostSubject
    drafter: DraftRows
    rows: DummyRows
    verify: _Sweep

    def sweep(self, count: int, context: int, seconds: float) -> _Sweep:
        """Drafts at one context, which is shorter where the model's is, of at most ``count`` rows."""
        count, plan, passes = self._size(count, context)
        effort = Effort(seconds, plan.least, passes=min(Effort.passes, passes), most_passes=passes)
        self.rows.clear()
        found = (self._launched if self._on_device else self._hosted)(count, plan.points[0][2], plan, effort)
        return _Sweep(found, plan.kept_back)

    @property
    def _on_device(self) -> bool:
        return self.subject.parts.device_round and self.drafter.on_device

    def _size(self, count: int, context: int) -> tuple[int, Plan, int]:
        """How many rows are measured, at which points, how often: rows grow in each run, and pools have an end."""
        depth = self.subject.depth
        room = self.rows.tables.max_model_len - depth - 2
        start = min(context, max(1, room // 2))
        while True:
            plan = draft_plan(count, depth, start)
            growth = len(plan.points) * (1 + depth if self._on_device else 1)
            for passes in range(min(Effort.most_passes, (room - start) // growth - 1), 0, -1):
                if self.rows.fits((count, growth * (passes + 1) + depth + 1, start)):
                    return count, plan, passes
            if count == 1:
                raise OutOfBlocks(growth, room)
            count = (count + 1) // 2

    def _hosted(self, count: int, start: int, plan: Plan, effort: Effort) -> dict[Point, float]:
        opened = OpenedRows(self.drafter, self.rows, count, start, self._features())
        try:
            return sweep(plan.points, DraftProbe(self.drafter, opened, self.rows.tables, self._features()), effort)
        finally:
            opened.close()

    def _launched(self, count: int, start: int, plan: Plan, effort: Effort) -> dict[Point, float]:
        """Whole device rounds less what their windows cost."""
        subject = self.subject
        guarded = GuardedDrafter(self.drafter, subject.parts.target.vocab_size, EngineStats())
        launcher = subject.make_launcher(RoundMachine(subject.parts, subject.sampler, guarded))
        opened = OpenedRows(guarded, self.rows, count, start, self._features())
        try:
            whole = sweep(plan.points, LaunchedDrafts(launcher, opened), effort)
        finally:
            opened.close()
        if guarded.failure is not None:
            raise DraftError(guarded.failure)
        windows = cost_table(self.verify.seconds, {}, self.verify.kept_back)
        return {(b, k, c): max(0.0, spent - windows.verify(b, b * (1 + k), c)) for (b, k, c), spent in whole.items()}

    def _features(self) -> Features:
        parts = self.subject.parts
        return Features(parts.target, self.drafter.taps, parts.prefill_chunk)


def _dear_drafts(verify: _Sweep, depth: int) -> _Sweep:
    """Stands in for what cannot be measured: every proposal costs a step of the target, so drafting never pays."""
    plain = {point: cost for point, cost in verify.seconds.items() if point[1] == 1}
    deep = {(rows, k, context): k * cost for (rows, _, context), cost in plain.items() for k in (1, depth)}
    return _Sweep(deep, frozenset())
