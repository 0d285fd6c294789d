"""The GPU benchmark on a tiny model on the CPU: each part that needs no GPU runs, a failure costs its own part only."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.bench.gpu import run
from paceline.bench.gpu.rig import Rig
from paceline.bench.gpu.settings import GpuSettings

SETTINGS = GpuSettings(
    shape="tiny", device="cpu", dtype="float32", batches=(1, 2), rates=(0.0, 0.95), tokens=48, prompt_tokens=16
)


def _measure(*parts: str, **settings: Any) -> dict[str, Any]:
    asked = GpuSettings(**{**SETTINGS.document(), "parts": parts, **settings})
    return run.measure_gpu(asked)["parts"]  # type: ignore[no-any-return]


def test_the_forward_part_covers_rows_and_widths() -> None:
    cells = _measure("forward")["forward"]["cells"]
    assert {(cell["rows"], cell["width"]) for cell in cells} >= {(1, 1), (1, 8), (2, 5)}
    assert all(cell["ms"] > 0 for cell in cells)
    assert all(cell["same"] for cell in cells)
    assert [cell["over_one"] for cell in cells if cell["width"] == 1] == [1.0, 1.0]


def test_plain_decoding_is_measured_by_batch() -> None:
    found = _measure("plain")["plain"]
    assert [cell["rows"] for cell in found["cells"]] == [1, 2]
    assert all(cell["acceptance_length"] == 1.0 for cell in found["cells"])
    assert all(cell["depth"] == 0.0 for cell in found["cells"])


def test_a_failing_part_costs_its_own_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rig: Rig) -> dict[str, Any]:
        raise RuntimeError("the kernel went wrong")

    monkeypatch.setitem(run._MEASURES, "bandwidth", broken)
    told: list[str] = []
    asked = GpuSettings(**{**SETTINGS.document(), "parts": ("bandwidth", "idle", "null")})
    parts = run.measure_gpu(asked, lambda document, name: told.append(name))["parts"]
    assert told == ["bandwidth", "idle", "null"]
    assert parts["bandwidth"]["failure"] == "RuntimeError: the kernel went wrong"
    assert "no GPU" in parts["idle"]["failure"]
    assert parts["null"]["host drafter"]["acceptance_length"] > 1.0


def test_no_part_starts_when_the_time_is_over() -> None:
    assert "not started" in _measure("bandwidth", budget=-1.0)["bandwidth"]["failure"]


def test_the_stream_kernel_reads_everything() -> None:
    """Through the interpreter of the kernel language, which must be chosen before it is imported."""
    code = (
        "import torch; from paceline.bench.gpu.stream_kernel import stream_sum;"
        "x = torch.arange(16384, dtype=torch.int32); sums = torch.zeros(3, dtype=torch.int32);"
        "read = stream_sum(x, sums, 1024, 4); assert read == 15 * 1024, read;"
        "assert int(sums.sum()) == int(x[:read].sum()), sums"
    )
    pytest.importorskip("triton", reason="the kernel language is not installed")
    done = subprocess.run(
        [sys.executable, "-c", code], env={"TRITON_INTERPRET": "1", "PYTHONPATH": ":".join(sys.path)}, check=False
    )
    assert done.returncode == 0
