"""The report of the GPU benchmark from a document made by hand, and the settings it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.bench.gpu import picture, report
from paceline.bench.gpu.settings import PARTS, GpuSettings
from paceline.core.errors import ConfigError


def _compared(rows: int, speedup: float) -> dict[str, Any]:
    own = {"rows": rows, "ms_per_token": 2.0, "plain_ms_per_token": 2.0 * speedup, "acceptance_length": 3.0}
    return own | {"depth": 4.0, "speedup": speedup, "efficiency": speedup / 3}


def _forward(width: int, over: float, limit: float | None) -> dict[str, Any]:
    cell = {"rows": 8, "width": width, "context": 512, "ms": 4.4 * over, "floor_ms": 3.5, "over_one": over}
    return cell | {"same": over < 1.3, "limit": limit}


def _document() -> dict[str, Any]:
    stream = {"rows": 1, "tokens": 100, "rounds": 100, "ms_per_token": 4.2, "round_ms": 4.2, "tokens_per_second": 238.0}
    kernel = {"name": "product", "per_round": 144.0, "us_per_round": 3900.0, "share": 0.93}
    idle = {"between": 0.015, "within": 0.02, "events": 900, "round_ms": 4.2, "span_ms": 400.0, "kernels": [kernel]}
    purposes = ("base", "weights", "kv_cache", "graphs", "transient")
    planned = dict.fromkeys(purposes, 10**9) | {"total": 5 * 10**9}
    memory = {"planned": planned, "held": 5.1e9, "of_planned": 1.02, "graphs": {"captured": 63}}
    parts: dict[str, Any] = {
        "bandwidth": {"reads": 4.5e12, "copies": 4.29e12, "launch": "block 4096"},
        "forward": {
            "context": 512,
            "cells": [_forward(1, 1.0, 1.05), _forward(8, 1.08, 1.1), _forward(64, 1.35, None)],
        },
        "plain": {"cells": [stream | {"floor_ms": 3.5, "of_bandwidth": 0.83}], "memory": memory},
        "table": {"length": 3.0, "depth": 4, "rate": 0.74, "cells": [_compared(1, 2.4), _compared(64, 1.4)]},
        "draft": {
            "cells": [
                {"rows": 1, "depth": depth, "round_ms": 4.3 + 0.2 * depth, "verify_ms": 4.2, "draft_ms_per_token": 0.2}
                for depth in range(3)
            ],
            "step_bytes": 700_000_000,
            "step_floor_ms": 0.16,
        },
        "grid": {"depth": 4, "cells": [_compared(1, 0.97) | {"rate": 0.3}, _compared(8, 2.0) | {"rate": 0.95}]},
        "idle": {"plain": idle, "host drafter": idle, "seconds": 4.0},
        "null": {"plain": stream, "seconds": 1.0},
        "peers": {"failure": "ImportError: no module named transformers"},
    }
    return {
        "machine": {"device": "cuda", "gpu": "a GPU", "torch": "2.11"},
        "model": {"shape": "qwen3-8b", "dtype": "bfloat16", "exactness": "bitwise"}
        | {"step_bytes": 15.1e9, "kv_bytes_per_token": 147_456},
        "settings": GpuSettings().document(),
        "seconds": 300.0,
        "parts": parts,
    }


def test_every_part_has_a_table_and_failures_are_listed() -> None:
    document = _document()
    found = report.sheets(document)
    assert len(found) == len(document["parts"]) + 3  # and the operations of two kinds of rounds, and memory
    assert found[-1].rows == [("peers", "ImportError: no module named transformers")]
    page = report.markdown(document)
    assert page.startswith("# Decode benchmark on a GPU")
    assert page.count("\n## ") == len(found)
    assert "4.500" in page


def test_every_cell_fits_its_headings() -> None:
    for sheet in report.sheets(_document()):
        assert sheet.rows
        assert {len(row) for row in sheet.rows} == {len(sheet.headings)}


def test_the_worst_cells_are_named() -> None:
    found = report.worst(_document())
    assert found["forward"] == "B=8 T=8: 1.080 of T=1, may be 1.10"
    assert found["table"] == "B=64: 1.400x plain"
    assert found["grid"] == "B=1, acceptance 0.3: 0.970x plain"


def test_the_picture_is_written_whatever_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs the extra 'plot'")
    document = _document()
    picture.draw(document, tmp_path / "all.png")
    document["parts"] = {"plain": {"failure": "no GPU"}}
    picture.draw(document, tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "none.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"parts": ("everything",)}, "parts"),
        ({"batches": (0, 1)}, "grid"),
        ({"rates": (0.5, 1.5)}, "forced"),
        ({"depth": 0}, "spec_tokens"),
        ({"length": 6.0}, "length"),
        ({"tokens": 10}, "max_tokens"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GpuSettings(**settings).check()
    assert caught.value.field == field


def test_slow_parts_run_only_when_asked_for() -> None:
    assert "peers" not in GpuSettings().parts
    GpuSettings(parts=tuple(PARTS)).check()
