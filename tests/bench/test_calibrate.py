"""Sheets, picture and JSON of a cost table that is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.calibrate import cost_sheets, document, draw_costs
from paceline.core.costs import CostTable, Grid
from paceline.engine.cost_cache import CostKey
from paceline.engine.cost_inspection import Calibration

PLAIN = Grid(((1, 4), (64, 512)), (0.010, 0.012, 0.014, 0.030))
VERIFY = Grid(
    ((1, 4), (1, 5, 20), (64, 512)), (0.01, 0.012, 0.015, 0.018, 0.03, 0.04, 0.014, 0.03, 0.015, 0.03, 0.05, 0.07)
)
DRAFT = Grid(((1, 4), (1, 4), (64,)), (0.002, 0.008, 0.003, 0.012))
KEY = CostKey("demo@1", 1000, "float32", "a CPU", 2, "lookup", 0, 4, 4, 2048, False, ("0.1", "2.13"))


def found(draft: Grid | None = None) -> Calibration:
    costs = CostTable(PLAIN, VERIFY, error=0.03) if draft is None else CostTable(PLAIN, VERIFY, draft, 0.03)
    return Calibration(KEY, costs, "the only one", True)


def test_a_sheet_per_context_with_ratios_to_plain() -> None:
    near, far = cost_sheets(found().costs, 4)
    assert near.headings == ("rows", "plain", "window 2", "window 3", "window 5")
    assert near.rows[0] == ("1", "10.00", "11.25 (1.12x)", "12.50 (1.25x)", "15.00 (1.50x)")
    assert near.rows[1][0] == "4"
    assert near.rows[1][-1] == "50.00 (3.57x)"
    assert "3% off" in near.note
    assert far.rows[0][1] == "12.00"


def test_drafts_have_a_sheet_if_they_cost_anything() -> None:
    assert len(cost_sheets(found().costs, 4)) == 2
    draft = cost_sheets(found(DRAFT).costs, 4)[-1]
    assert draft.headings == ("rows", "depth 1", "depth 2", "depth 3", "depth 4")
    assert draft.rows[0][1] == "2.00 (0.20x)"


def test_a_depth_that_is_not_usual_is_shown() -> None:
    assert cost_sheets(found().costs, 6)[0].headings[-1] == "window 7"
    assert cost_sheets(found().costs, 0)[0].headings == ("rows", "plain")


def test_the_document_holds_key_and_table() -> None:
    data = json.loads(json.dumps(document(found(DRAFT))))
    assert data["bench"] == "calibrate"
    assert data["key"]["drafter"] == "lookup"
    assert CostTable.from_json(data["costs"]) == found(DRAFT).costs


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_the_picture_is_a_png(draft: Grid | None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")
    draw_costs(found(draft), tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
