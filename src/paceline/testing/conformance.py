"""``check_provider``: runs somebody's drafter through the equality grid on a tiny model and says what broke.

A drafter that passes keeps its side of the contract (``paceline.draft.base``), and the engine's streams with it are
those of plain decoding. Example::

    report = check_provider(MyDrafter())
    assert report.ok, report
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..draft.base import DraftProvider
from .grid import Cell, CellResult, run_with, target_of
from .pairwise import full_grid, pairwise
from .workload import SAMPLINGS, workload

ProviderSource = DraftProvider | Callable[[], DraftProvider]


@dataclass(frozen=True)
class Coverage:
    """Which cells to run: every pair of values of two fields occurs in some cell, with ``full`` every combination.

    ``families``: tiny models by name ("toy" is a toy target that runs in microseconds; it cannot give a drafter real
    hidden states). ``batches``: rows of the engine, of 1, 3 and 8, with more requests than rows.
    """

    families: Sequence[str] = ("llama",)
    samplings: Sequence[str] = tuple(SAMPLINGS)
    batches: Sequence[int] = (1, 3, 8)
    chunks: Sequence[int] = (1, 7, 64, 512)
    depths: Sequence[int] = (1, 2, 4, 8)
    full: bool = False

    def cells(self, drafter: str) -> list[Cell]:
        factors = {
            "family": self.families,
            "batch": self.batches,
            "depth": self.depths,
            "sampling": self.samplings,
            "chunk": self.chunks,
            "order": ("host", "device", "ahead"),
        }
        rows = full_grid(factors) if self.full else pairwise(factors)
        return [Cell(drafter=drafter, **row) for row in rows]


@dataclass
class ConformanceReport:
    """What :func:`check_provider` found. ``str(report)`` is readable; ``report.ok`` is the verdict."""

    drafter: str
    results: list[CellResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.results) and not self.problems

    @property
    def problems(self) -> list[str]:
        """Every problem with the cell it occurred in."""
        return [f"{result.cell}: {problem}" for result in self.results for problem in result.problems]

    @property
    def drafted(self) -> int:
        return sum(result.drafted for result in self.results)

    @property
    def accepted(self) -> int:
        return sum(result.accepted for result in self.results)

    def __str__(self) -> str:
        rate = f"{self.accepted / self.drafted:.0%}" if self.drafted else "none"
        head = f"drafter {self.drafter!r}: {len(self.results)} cells, {self.drafted} tokens drafted, {rate} accepted"
        if self.ok:
            return f"{head}; all streams equal plain decoding"
        return "\n  ".join([f"{head}; {len(self.problems)} problems", *self.problems])


def check_provider(
    provider: ProviderSource, coverage: Coverage | None = None, *, stop_at_first: bool = False
) -> ConformanceReport:
    """Run ``provider`` (or what it returns when called, once per cell) through ``coverage``.

    Each cell checks: tokens, finish reasons and counts of every request equal the plain loop on the ``transformers``
    model, in float64; the statistics' identities hold; proposals respect depth and vocabulary; the drafter never
    raised; rows were opened and closed once; all blocks and indices came back.
    """
    coverage = coverage or Coverage()
    report = ConformanceReport(_instance(provider).id)
    for cell in coverage.cells(report.drafter):
        report.results.append(_run(provider, cell))
        if stop_at_first and report.problems:
            return report
    return report


def _instance(source: ProviderSource) -> DraftProvider:
    return source if isinstance(source, DraftProvider) else source()


def _run(source: ProviderSource, cell: Cell) -> CellResult:
    _, decoder = target_of(cell.family)
    return run_with(cell, _instance(source), workload(cell.batch, cell.sampling, decoder))
