"""``paceline bench simulate`` as tables and JSON: every drafter, cost table, batch size and workload is one cell.

Formats what :mod:`paceline.bench.simulate` replays; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.costs import CostTable
from ..core.errors import ConfigError
from ..gate.adaptive import AdaptiveGate
from .sheets import Sheet
from .simulate import CostBook, FixedDepth, Gated, Oracle, replay
from .trace import Trace, interleave, read_traces, shipped_traces

SHIPPED_COSTS = Path(__file__).parent / "costs"
#: All workloads together.
MIX = "mix"
#: A share of the oracle's gain is not stated where that gain is smaller.
LEAST_GAIN = 0.02
NOTE = (
    "Speed-ups are seconds of plain decoding over seconds, by the cost table. gain: the part of the oracle's gain that "
    "the gate has. The oracle knows which proposals are right and never wastes one, so nobody can reach it."
)


@dataclass(frozen=True)
class NamedCosts:
    """A cost table, its name and what it was measured on."""

    name: str
    costs: CostTable
    about: str = ""


@dataclass(frozen=True)
class SimulationSettings:
    """``traces``: files, empty = those that ship. ``costs``: names that ship or files, empty = all that ship.
    ``drafters``: names in the traces, empty = all. ``charge_drafts``: lookups, too, cost what the table says that a
    draft costs, as if a model had proposed what they did."""

    traces: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1, 4, 8)
    drafters: tuple[str, ...] = ()
    charge_drafts: bool = False

    def check(self) -> None:
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise ConfigError("batch", "give sizes of at least 1, comma-separated")


@dataclass(frozen=True)
class Cell:
    """Speed-ups over plain decoding. ``fixed``: by depth from 1 on."""

    drafter: str
    costs: str
    batch: int
    workload: str
    gate: float
    oracle: float
    fixed: tuple[float, ...]
    tokens: int
    synthetic: bool

    @property
    def best_depth(self) -> int:
        return max(range(len(self.fixed)), key=self.fixed.__getitem__) + 1

    @property
    def best_fixed(self) -> float:
        return max(self.fixed)

    @property
    def gain(self) -> float | None:
        """The gate's gain over plain decoding as a part of the oracle's; ``None`` where there is little to gain."""
        return (self.gate - 1.0) / (self.oracle - 1.0) if self.oracle >= 1.0 + LEAST_GAIN else None

    def document(self) -> dict[str, Any]:
        more = {"best_depth": self.best_depth, "best_fixed": self.best_fixed, "gain": self.gain}
        return asdict(self) | more


@dataclass(frozen=True)
class Simulation:
    """All cells, in the order of the settings."""

    settings: SimulationSettings
    costs: tuple[NamedCosts, ...]
    cells: list[Cell] = field(default_factory=list)


def read_costs(spec: str) -> NamedCosts:
    """A table that ships, by name, or a JSON file: a cost table, or an object with one under ``costs``."""
    shipped = SHIPPED_COSTS / f"{spec}.json"
    path = shipped if shipped.is_file() else Path(spec)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        known = ", ".join(sorted(file.stem for file in SHIPPED_COSTS.glob("*.json")))
        raise ConfigError("costs", f"{spec} is neither a cost table file nor one of {known}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError("costs", f"{spec} holds no cost table")
    return NamedCosts(str(data.get("name", path.stem)), CostTable.from_json(data.get("costs", data)), _about(data))


def _about(data: dict[str, Any]) -> str:
    about = data.get("about", "")
    return about if isinstance(about, str) else ""


def simulate(settings: SimulationSettings, progress: Callable[[str, int, int], None] | None = None) -> Simulation:
    """Replay every cell. ``progress(stage, done, total)`` is told before each."""
    settings.check()
    paths = [Path(path) for path in settings.traces]
    traces = [trace for path in paths for trace in read_traces(path)] if paths else shipped_traces()
    drafters = settings.drafters or tuple(dict.fromkeys(trace.drafter for trace in traces))
    names = settings.costs or tuple(sorted(path.stem for path in SHIPPED_COSTS.glob("*.json")))
    found = Simulation(settings, tuple(read_costs(name) for name in names))
    plans = [(drafter, costs, batch) for drafter in drafters for costs in found.costs for batch in settings.batches]
    for done, (drafter, costs, batch) in enumerate(plans):
        if progress is not None:
            progress(f"{drafter}, {costs.name}, batch {batch}", done, len(plans))
        own = [trace for trace in traces if trace.drafter == drafter]
        if not own:
            known = ", ".join(dict.fromkeys(trace.drafter for trace in traces))
            raise ConfigError("drafters", f"no trace of {drafter!r}; there are {known}")
        table = costs.costs.without_draft() if own[0].free and not settings.charge_drafts else costs.costs
        found.cells.extend(_cells(own, NamedCosts(costs.name, table), batch))
    return found


def _cells(traces: Sequence[Trace], costs: NamedCosts, batch: int) -> Iterator[Cell]:
    """One cell per workload, and one of all of them."""
    book = CostBook(costs.costs)
    depth = max(trace.depth for trace in traces)
    for workload in (*dict.fromkeys(trace.workload for trace in traces), MIX):
        own = interleave([trace for trace in traces if workload in (MIX, trace.workload)])
        plain = replay(own, book, FixedDepth(0), batch)
        fixed = [replay(own, book, FixedDepth(deep), batch) for deep in range(1, depth + 1)]
        gate = replay(own, book, Gated(AdaptiveGate(book.table, depth), own[0].free), batch)
        oracle = replay(own, book, Oracle(book), batch)
        yield Cell(
            drafter=own[0].drafter,
            costs=costs.name,
            batch=batch,
            workload=workload,
            gate=plain.seconds / gate.seconds,
            oracle=plain.seconds / oracle.seconds,
            fixed=tuple(plain.seconds / run.seconds for run in fixed),
            tokens=plain.tokens,
            synthetic=own[0].synthetic,
        )


def document(found: Simulation) -> dict[str, Any]:
    """Everything as plain JSON."""
    return {
        "bench": "simulate",
        "version": __version__,
        "settings": asdict(found.settings),
        "costs": {costs.name: costs.about for costs in found.costs},
        "cells": [cell.document() for cell in found.cells],
        "worst": {name: cell.document() for name, cell in worst(found.cells).items()},
        "note": NOTE,
    }


def worst(cells: Sequence[Cell]) -> dict[str, Cell]:
    """The cells in which the gate looks worst: against plain decoding, the best fixed depth, and the oracle."""
    found = {
        "against plain": min(cells, key=lambda cell: cell.gate),
        "against the best fixed depth": min(cells, key=lambda cell: cell.gate / cell.best_fixed),
    }
    stated = [cell for cell in cells if cell.gain is not None]
    if stated:
        found["of the oracle's gain"] = min(stated, key=lambda cell: cell.gain or 0.0)
    return found


def sheets(found: Simulation) -> list[Sheet]:
    """One table per drafter and cost table, and the worst cells."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in found.cells:
        groups.setdefault((cell.drafter, cell.costs), []).append(cell)
    headings = ("workload", "batch", "gate", "best fixed", "depth", "gate / fixed", "oracle", "gain")
    tables = [
        Sheet(f"{drafter}, costs {costs}", headings, [_line(cell) for cell in cells])
        for (drafter, costs), cells in groups.items()
    ]
    worst_rows = [(name, cell.drafter, cell.costs, *_line(cell)) for name, cell in worst(found.cells).items()]
    tables.append(Sheet("Worst cells of the gate", ("", "drafter", "costs", *headings), worst_rows, NOTE))
    return tables


def _line(cell: Cell) -> tuple[str, ...]:
    return (
        cell.workload,
        str(cell.batch),
        f"{cell.gate:.3f}x",
        f"{cell.best_fixed:.3f}x",
        str(cell.best_depth),
        f"{cell.gate / cell.best_fixed:.3f}",
        f"{cell.oracle:.3f}x",
        "–" if cell.gain is None else f"{cell.gain:.0%}",
    )
