"""The equality grid: drafters, sampling, batches with joins and leaves, chunk sizes, depths, round orders, families.

Every cell runs a real engine in float64 and compares each stream, finish reason and count with the plain loop.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.costs import CostTable, Grid
from ..draft.base import DraftProvider
from ..draft.kinds.draft_model import ModelDrafter
from ..models.artifact import open_artifact
from ..models.binding import TargetBinding, load_target
from .collect import Collector
from .drafters import (
    AdversarialDrafter,
    DeviceOracleDrafter,
    EmptyDrafter,
    OracleDrafter,
    RaggedDrafter,
    ScriptedDrafter,
)
from .harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from .models import FAMILIES, tiny_model
from .reference import PlainDecoder, reference
from .toy import ToyTarget
from .truncate import truncate_model
from .watch import WatchedDrafter
from .workload import SAMPLINGS, script_for, workload

#: Factor -> its values; chunk 512 takes every prompt whole. ``draft_model`` is the target without its last layer.
FACTORS: Mapping[str, Sequence[Any]] = {
    "family": tuple(FAMILIES),
    "drafter": (
        *("none", "ngram", "suffix", "draft_model", "device"),
        *("scripted", "oracle", "adversarial", "ragged", "empty"),
    ),
    "batch": (1, 3, 8),
    "depth": tuple(range(9)),
    "sampling": tuple(SAMPLINGS),
    "chunk": (1, 7, 64, 512),
    "order": ("host", "device", "ahead"),
    "gate": ("pinned", "cheap", "dear"),
    "fill": (False, True),
}


def _costs(window: float) -> CostTable:
    """A plain step costs 1, each further position ``window``, drafting nothing."""
    flat, rows = (1, 8, 64), ((1, 8), (1,))
    verify = Grid(((1, 8), flat, (1,)), tuple(1.0 + window * (n - 1) for _ in range(2) for n in flat))
    return CostTable(Grid(rows, (1.0, 1.0)), verify, Grid(((1, 8), (0, 8), (1,)), (0.0,) * 4), error=0.0)


#: Gate -> the costs it decides by: nothing is decided, windows cost nothing, something, more than they can bring.
COSTS: Mapping[str, CostTable | None] = {"pinned": None, "cheap": _costs(0.0), "fair": _costs(0.4), "dear": _costs(5.0)}

#: What the whole grid is run with; the other values occur in the pairwise cells.
WHOLE_GRID: Mapping[str, Sequence[Any]] = {
    **FACTORS,
    "family": ("llama", "qwen3"),
    "order": ("host", "ahead"),
    "gate": ("pinned",),
    "fill": (False,),
}

_ACCEPTS = (8, 0, 2, 1, 3)
_MUST_DRAFT = frozenset({"draft_model", "device", "scripted", "oracle", "adversarial", "ragged"})


@dataclass(frozen=True)
class Cell:
    """One combination of the factors. ``family`` "toy" is :class:`ToyTarget`. ``order`` of rounds: on the host, on the
    device, or there and ahead of their reads; ``gate``: a name of :data:`COSTS`; ``fill``: rows predict their text."""

    family: str
    drafter: str
    batch: int
    depth: int
    sampling: str
    chunk: int
    order: str
    gate: str = "pinned"
    fill: bool = False

    def __str__(self) -> str:
        sizes = f"batch{self.batch}-depth{self.depth}-chunk{self.chunk}"
        return f"{self.family}-{self.drafter}-{self.sampling}-{sizes}-{self.order}-{self.gate}" + "-fill" * self.fill

    def setup(self, method: str) -> Setup:
        """The engine of this cell; ``method`` names a drafter of the registry."""
        return Setup(
            self.batch,
            self.chunk,
            self.depth,
            self.order != "host",
            method=method,
            run_ahead=self.order == "ahead",
            costs=COSTS[self.gate],
        )


@dataclass
class CellResult:
    """What a cell found. ``problems`` is empty if every promise held."""

    cell: Cell
    problems: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = "ok" if not self.problems else "; ".join(self.problems)
        return f"{self.cell}: {verdict} ({self.accepted}/{self.drafted} accepted, {self.seconds:.2f} s)"


@functools.cache
def target_of(family: str) -> tuple[Any, PlainDecoder]:
    """The float64 target of a family and its plain decoder, loaded once per process."""
    if family == "toy":
        toy = ToyTarget()
        return toy, toy.decoder()
    path = tiny_model(family)
    return _load(path), reference(path)


def _load(path: Path) -> TargetBinding:
    return load_target(open_artifact(str(path)), "float64", "cpu", None)


@functools.cache
def truncated(family: str) -> TargetBinding:
    """The family's tiny model without its last layer, to draft for it; loaded once per process."""
    path = tiny_model(family)
    return _load(truncate_model(path, path.with_name(f"{path.name}-cut"), layers=1))


def run_cell(cell: Cell) -> CellResult:
    """Run one cell."""
    _, decoder = target_of(cell.family)
    jobs = workload(cell.batch, cell.sampling, decoder)
    return run_with(cell, make_drafter(cell, decoder, jobs), jobs)


def run_with(cell: Cell, drafter: DraftProvider | None, jobs: Sequence[Job]) -> CellResult:
    """Run ``jobs`` in the cell's engine with ``drafter``; ``None`` takes the registry's of the cell's name."""
    target, decoder = target_of(cell.family)
    watched = None if drafter is None else WatchedDrafter(drafter)
    method = cell.drafter if drafter is None else "none"
    jobs = [_predicting(job, decoder) for job in jobs] if cell.fill else jobs
    result = CellResult(cell)
    start = time.perf_counter()
    with open_engine(target, decoder.eos_ids, cell.setup(method), watched) as engine:
        served = run_jobs(engine, jobs)
        result.problems += compare(jobs, decoder, served) + leftovers(engine)
        failures, first = engine.stats().drafter_failures, engine.info()["drafter_failure"]
    result.seconds = time.perf_counter() - start
    if watched is not None:
        result.problems += watched.problems
        if watched.largest_prefill > cell.chunk:
            result.problems.append(f"a prefill ran {watched.largest_prefill} tokens, the chunk is {cell.chunk}")
    if failures:
        result.problems.append(f"{failures} drafter failures, the first: {first}")
    _count(result, served)
    return result


def make_drafter(cell: Cell, decoder: PlainDecoder, jobs: Sequence[Job]) -> DraftProvider | None:
    """The test drafter that the cell names; ``None`` for one of the registry."""
    if cell.drafter == "scripted":
        return ScriptedDrafter({job.prompt: _script(cell, decoder, job) for job in jobs})
    makers: dict[str, Any] = {
        "draft_model": lambda: ModelDrafter(truncated(cell.family)),
        "device": lambda: DeviceOracleDrafter(decoder.recorded),
        "oracle": lambda: OracleDrafter(decoder.recorded),
        "adversarial": lambda: AdversarialDrafter(decoder.recorded),
        "ragged": lambda: RaggedDrafter(decoder.recorded),
        "empty": EmptyDrafter,
    }
    maker = makers.get(cell.drafter)
    return None if maker is None else maker()


def _predicting(job: Job, decoder: PlainDecoder) -> Job:
    """The job with a prediction of its text, in which some ids are missing and others are new; every third without."""
    text = decoder.run(job.prompt, job.params).tokens
    if len(text) % 3 == 0:
        return job
    place = len(text) // 2
    prediction = (*text[:place], text[0], *text[place + 2 :], 1)
    return replace(job, params=replace(job.params, prediction=prediction, fill=True))


def _script(cell: Cell, decoder: PlainDecoder, job: Job) -> list[list[int]]:
    cap = cell.depth if job.params.num_draft_tokens is None else min(cell.depth, job.params.num_draft_tokens)
    return script_for(decoder.run(job.prompt, job.params), cap, _ACCEPTS, decoder.vocab_size)


def _count(result: CellResult, served: Mapping[str, Collector]) -> None:
    """Add up the statistics, and see that the drafter really ran, or really did not."""
    cell, problems = result.cell, result.problems
    result.drafted = sum(got.spec.drafted for got in served.values())
    result.accepted = sum(got.spec.accepted for got in served.values())
    result.tokens = sum(len(got.tokens) for got in served.values())
    if cell.drafter in ("none", "empty") or cell.depth == 0:
        if result.drafted:
            problems.append(f"{result.drafted} tokens were drafted where none should be")
    elif cell.drafter in _MUST_DRAFT and not result.drafted and cell.gate != "dear":
        problems.append("nothing was drafted")
    if cell.drafter == "oracle" and cell.gate == "pinned" and result.accepted < result.drafted - len(served):
        problems.append(f"only {result.accepted} of the oracle's {result.drafted} proposals were accepted")
