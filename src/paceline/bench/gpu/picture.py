"""A GPU measurement as a picture: speeds by batch, flatness of the verify forward, the adaptive grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..plot import figure_class

Document = Mapping[str, Any]


def draw(document: Document, path: Path) -> None:
    """Write a PNG to ``path``. Parts that were not measured leave their place empty."""
    canvas = figure_class()(figsize=(16.0, 5.0), layout="constrained")
    left, middle, right = canvas.subplots(1, 3)
    parts = {name: part for name, part in document["parts"].items() if "failure" not in part}
    _draw_speeds(left, parts)
    _draw_flatness(middle, parts)
    _draw_grid(right, parts)
    machine, model = document["machine"], document["model"]
    canvas.suptitle(f"{model['shape']} {model['dtype']} · {machine.get('gpu', machine['device'])}", fontsize=11)
    canvas.savefig(path, dpi=120)


def _draw_speeds(axes: Any, parts: Document) -> None:
    axes.set_title("milliseconds a token and stream")
    for name, label in (("plain", "plain"), ("table", "fixed depth, forced acceptance")):
        cells = parts.get(name, {}).get("cells", [])
        if cells:
            axes.plot([c["rows"] for c in cells], [c["ms_per_token"] for c in cells], marker="o", label=label)
    floor = parts.get("plain", {}).get("cells", [])
    if floor:
        axes.plot([c["rows"] for c in floor], [c["floor_ms"] for c in floor], "--", color="grey", label="floor")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("streams")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _draw_flatness(axes: Any, parts: Document) -> None:
    axes.set_title("verify forward over that of one token")
    cells = parts.get("forward", {}).get("cells", [])
    for rows in dict.fromkeys(cell["rows"] for cell in cells):
        own = [cell for cell in cells if cell["rows"] == rows]
        axes.plot([c["rows"] * c["width"] for c in own], [c["over_one"] for c in own], marker="o", label=f"B={rows}")
    limits = sorted({(c["rows"] * c["width"], c["limit"]) for c in cells if c["limit"]})
    if limits:
        axes.plot([flat for flat, _ in limits], [most for _, most in limits], "--", color="grey", label="target")
        axes.set_xscale("log", base=2)
    axes.set_xlabel("positions (B·T)")
    _legend(axes)


def _draw_grid(axes: Any, parts: Document) -> None:
    axes.set_title("adaptive depth: speed-up over plain")
    cells = parts.get("grid", {}).get("cells", [])
    for rate in dict.fromkeys(cell["rate"] for cell in cells):
        own = [cell for cell in cells if cell["rate"] == rate]
        axes.plot([c["rows"] for c in own], [c["speedup"] for c in own], marker="o", label=f"acceptance {rate}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    if cells:
        axes.set_xscale("log", base=2)
    axes.set_xlabel("streams")
    _legend(axes)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
