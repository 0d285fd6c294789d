"""Cost tables and random gate programs for the tests of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from paceline.core.costs import FREE, CostTable, Grid
from paceline.core.ports import Evidence, Gate, GateRow

DEPTH = 6


def linear_costs(per_proposal: float, draft: float = 0.0, per_row: float = 0.0) -> CostTable:
    """A plain round costs 1 + ``per_row`` for each row but the first; a proposal and a draft step their share."""
    rows, flats = (1, 64), (1, 64, 1000)
    plain = Grid((rows, (0,)), (1.0, 1.0 + 63 * per_row))
    cells = [1.0 + per_row * (count - 1) + per_proposal * max(0, flat - count) for count in rows for flat in flats]
    verify = Grid.monotone((rows, flats, (0,)), cells)
    grid = Grid.monotone(((1,), (1, 2), (0,)), (draft, 2 * draft)) if draft else FREE
    return CostTable(plain, verify, grid)


def row(index: int = 0, cap: int = DEPTH, match: int = 0, remaining: int = 100, spanned: bool = False) -> GateRow:
    return GateRow(index, cap, remaining, 10, match, spanned)


@dataclass(frozen=True)
class Step:
    """One decision: the rows it is for, and per row how many of the proposals are right."""

    rows: tuple[GateRow, ...]
    right: tuple[int, ...]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Decisions about rows 0 .. 3, with caps, matches and outcomes of all kinds."""
    rows = st.builds(
        GateRow,
        st.integers(0, 3),
        st.integers(0, DEPTH),
        st.integers(1, 9),
        st.integers(0, 400),
        st.sampled_from([0, 0, 1, 3, 20]),
        st.booleans(),
    )
    several = st.lists(rows, min_size=1, max_size=4, unique_by=lambda row: row.index)
    return [
        Step(tuple(found), tuple(draw(st.lists(st.integers(0, DEPTH), min_size=4, max_size=4))))
        for found in draw(st.lists(several, min_size=1, max_size=25))
    ]


def run(gate: Gate, program: Sequence[Step]) -> list[list[int]]:
    """Play a program; returns the depths of every decision."""
    decisions = []
    for step in program:
        depths = gate.next(list(step.rows))
        decisions.append(depths)
        gate.observe(
            [
                Evidence(row.index, depth, min(depth, right), row.match)
                for row, depth, right in zip(step.rows, depths, step.right, strict=False)
                if depth
            ]
        )
    return decisions
