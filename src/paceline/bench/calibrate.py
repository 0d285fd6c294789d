"""``bench calibrate``: the cost table of a model and its drafter as sheets, a picture and JSON. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.costs import CostTable
from ..engine.cost_inspection import Calibration
from .plot import figure_class
from .sheets import Sheet

#: Windows shown; the table interpolates between all that were measured.
_WINDOWS = (1, 2, 3, 5, 9, 17, 33)
_DEPTHS = (1, 2, 3, 4, 8, 16, 32)


def cost_sheets(costs: CostTable, depth: int) -> list[Sheet]:
    """One sheet per context: milliseconds and ratio to a plain round by rows and window; one of drafts if they cost
    anything. ``depth``: the largest in use."""
    windows = _shown(_WINDOWS, depth + 1)
    found = [_verify_sheet(costs, context, windows) for context in costs.plain_grid.axes[1]]
    if any(costs.draft_grid.values):
        found.append(_draft_sheet(costs, _shown(_DEPTHS, depth)))
    return found


def _shown(usual: Sequence[int], most: int) -> list[int]:
    return sorted({number for number in usual if number < most} | {most})


def _verify_sheet(costs: CostTable, context: int, windows: Sequence[int]) -> Sheet:
    rows = []
    for count in costs.plain_grid.axes[0]:
        plain = costs.plain(count, context)
        cells = [costs.verify(count, count * width, context) for width in windows[1:]]
        rows.append((str(count), f"{plain * 1e3:.2f}", *(f"{c * 1e3:.2f} ({c / plain:.2f}x)" for c in cells)))
    return Sheet(
        f"Round of rows with {context} tokens each, ms",
        ("rows", "plain", *(f"window {width}" for width in windows[1:])),
        rows,
        "a window is the pending token and the proposals of a row; in brackets the ratio to a plain round; "
        f"interpolation was at most {costs.error:.0%} off",
    )


def _draft_sheet(costs: CostTable, depths: Sequence[int]) -> Sheet:
    context = costs.draft_grid.axes[2][0]
    rows = []
    for count in costs.draft_grid.axes[0]:
        cells = [costs.draft(count, depth, context) for depth in depths]
        plain = costs.plain(count, context)
        rows.append((str(count), *(f"{cell * 1e3:.2f} ({cell / plain:.2f}x)" for cell in cells)))
    return Sheet(
        f"Drafts for rows with {context} tokens each, ms",
        ("rows", *(f"depth {depth}" for depth in depths)),
        rows,
        "in brackets the ratio to a plain round",
    )


def document(found: Calibration) -> dict[str, Any]:
    """Everything as plain JSON."""
    return {
        "bench": "calibrate",
        "key": asdict(found.key),
        "drafter_reason": found.drafter_reason,
        "kept": found.kept,
        "costs": found.costs.to_json(),
    }


def draw_costs(found: Calibration, path: Path) -> None:
    """Write a PNG: rounds over the window by rows, what a longer context adds, drafts if they cost anything."""
    costs, key = found.costs, found.key
    drafts = any(costs.draft_grid.values)
    canvas = figure_class()(figsize=(15.0 if drafts else 11.0, 4.8), layout="constrained")
    axes = canvas.subplots(1, 3 if drafts else 2)
    _draw_windows(axes[0], costs, key.depth)
    _draw_contexts(axes[1], costs, key.depth)
    if drafts:
        _draw_drafts(axes[2], costs, key.depth)
    canvas.suptitle(
        f"{key.model.split('@')[0]} {key.dtype} · {key.device} · {key.threads} threads · drafter {key.drafter} · "
        f"interpolation at most {costs.error:.0%} off",
        fontsize=10,
    )
    canvas.savefig(path, dpi=130)


def _draw_windows(axes: Any, costs: CostTable, depth: int) -> None:
    context = costs.plain_grid.axes[1][0]
    windows = range(1, depth + 2)
    for count in costs.plain_grid.axes[0]:
        plain = costs.plain(count, context)
        ratios = [costs.verify(count, count * width, context) / plain for width in windows]
        axes.plot(windows, ratios, marker=".", label=f"{_rows(count)}, plain {plain * 1e3:.1f} ms")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("window per row (pending token and proposals)")
    axes.set_ylabel(f"round / plain round, context {context}")
    axes.legend(fontsize=8)


def _draw_contexts(axes: Any, costs: CostTable, depth: int) -> None:
    contexts = costs.plain_grid.axes[1]
    for place, count in enumerate(dict.fromkeys((costs.plain_grid.axes[0][0], costs.plain_grid.axes[0][-1]))):
        for width, style in ((1, "-"), (depth + 1, "--")):
            spent = [costs.verify(count, count * width, context) * 1e3 for context in contexts]
            axes.plot(contexts, spent, style, marker="o", color=f"C{place}", label=f"{_rows(count)}, window {width}")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("context, tokens per row")
    axes.set_ylabel("round, ms")
    axes.legend(fontsize=8)


def _draw_drafts(axes: Any, costs: CostTable, depth: int) -> None:
    context = costs.draft_grid.axes[2][0]
    for count in costs.draft_grid.axes[0]:
        spent = [costs.draft(count, deep, context) * 1e3 for deep in range(1, depth + 1)]
        axes.plot(range(1, depth + 1), spent, marker=".", label=_rows(count))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("depth")
    axes.set_ylabel(f"drafts, ms, context {context}")
    axes.legend(fontsize=8)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
