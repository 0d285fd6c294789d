"""The main promise: under any drafter, sampling, batch, chunk size, depth and order, streams equal the plain loop.

The pairwise cells run always; the whole grid is marked ``grid`` and run by ``make equality``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

import paceline.engine.planning as planning_module
import paceline.engine.round as round_module
import paceline.engine.settlement as settlement_module
from paceline.testing.equality import all_cells, main, pairwise_cells
from paceline.testing.grid import WHOLE_GRID, Cell, run_cell

_OUTER = ("family", "drafter", "batch", "depth")
_INNER = ("sampling", "chunk", "order", "gate", "fill")


@pytest.mark.parametrize("cell", pairwise_cells(), ids=str)
def test_streams_reasons_and_counts_equal_the_plain_loop(cell: Cell) -> None:
    assert run_cell(cell).problems == []


@pytest.mark.grid
@pytest.mark.parametrize(_OUTER, list(product(*(WHOLE_GRID[name] for name in _OUTER))))
def test_every_cell_of_the_grid(family: str, drafter: str, batch: int, depth: int) -> None:
    inner = product(*(WHOLE_GRID[name] for name in _INNER))
    cells = [Cell(family, drafter, batch, depth, *values) for values in inner]
    assert [str(result) for cell in cells if (result := run_cell(cell)).problems] == []


def test_the_marked_test_covers_the_whole_grid() -> None:
    outer = product(*(WHOLE_GRID[name] for name in _OUTER))
    inner = list(product(*(WHOLE_GRID[name] for name in _INNER)))
    assert {Cell(*a, *b) for a in outer for b in inner} == set(all_cells())


TELLING = Cell("llama", "ragged", 3, 4, "mixed", 7, "device")


@pytest.mark.parametrize("order", ["host", "device", "ahead"])
def test_the_grid_catches_an_acceptance_that_takes_one_too_many(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = round_module.RoundRunner.run

    def run(self, plan):  # type: ignore[no-untyped-def]
        verified = original(self, plan)
        for place, result in enumerate(verified.results):
            if 0 < result.accepted < len(result.proposals) and result.correction is not None:
                wrong = (*result.emitted[:-1], result.proposals[result.accepted])
                verified.results[place] = type(result)(result.proposals, wrong, result.accepted, source=result.source)
        return verified

    monkeypatch.setattr(round_module.RoundRunner, "run", run)
    found = run_cell(replace(TELLING, order=order)).problems
    assert any("tokens differ" in problem for problem in found)


def test_the_grid_catches_statistics_that_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    original = settlement_module.settle

    def settle(row, state, result, outcome):  # type: ignore[no-untyped-def]
        original(row, state, result, outcome)
        row.spec.accepted += bool(result.accepted)

    monkeypatch.setattr(settlement_module, "settle", settle)
    assert any("identity" in problem for problem in run_cell(TELLING).problems)


def test_the_command_reports_cells_and_fails_when_one_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = ["--pairwise", "--drafter", "oracle", "--batch", "1"]
    assert main(narrow) == 0
    assert "cells equal to plain decoding" in capsys.readouterr().out
    monkeypatch.setattr(planning_module.Planner, "_cap", lambda self, row, unread=None: 0)
    assert main(narrow) == 1
    assert "nothing was drafted" in capsys.readouterr().err
