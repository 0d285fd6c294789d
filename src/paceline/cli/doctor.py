"""``paceline doctor``: what this machine can run and how a model would fit. Prints what the engine finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import typer

from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, JSON_FLAG, MODEL, OUTPUT, Flag, with_options

if TYPE_CHECKING:
    from rich.table import Table

    from ..bench.sheets import Sheet

_MODEL_FLAG = Flag("model_flag", str, "The same as the argument.", MODEL, ("--model", "-m"))


_CALIBRATE_FLAG = Flag("calibrate", bool, "Measure what rounds cost, and keep it.", OUTPUT, default=False)


@with_options((_MODEL_FLAG, CONFIG_FLAG, *ENGINE_FLAGS, _CALIBRATE_FLAG, JSON_FLAG, DEBUG_FLAG))
def doctor(
    model: Optional[str] = typer.Argument(  # noqa: UP045
        None, help="Also plan for this model: demo, a directory, a .gguf file or a hub id."
    ),
    **values: Any,
) -> None:
    """Say what this machine can run: device, number format, drafters; with a model, its exactness and memory plan.

    A hub model is downloaded if it is not there yet; two of its layers are loaded. What its rounds cost is shown if
    that was measured before; --calibrate loads it whole and measures now. Options of requests in a file are checked
    and shown.
    """
    from ..core.errors import RequestError

    if model is not None and values["model_flag"] is not None:
        raise RequestError("model", "is given twice, as an argument and by --model")
    from ..bench.sheets import terminal_table
    from ..core.config import EngineConfig
    from ..engine.cost_inspection import calibrate
    from ..engine.inspect import inspect_machine, inspect_model
    from ..engine.progress import loading_bars
    from .settings import asked_for

    asked = asked_for({**values, "model": model or values["model_flag"]})
    config = EngineConfig.build(**asked.engine)
    report: dict[str, Any] = {"machine": inspect_machine(config)}
    if asked.sampling:
        report["sampling"] = asked.sampling
    if values["calibrate"] and "model" not in asked.engine:
        raise RequestError("calibrate", "needs a model; name one")
    if "model" in asked.engine:
        with loading_bars(sys.stderr.isatty()) as progress:
            if values["calibrate"]:
                calibrate(config, progress)
            report["model"] = inspect_model(config, progress)
    if values["as_json"]:
        print(json.dumps(report))
        return
    from rich.console import Console

    console = Console()
    for title, section in report.items():
        console.print(_table(title, {name: value for name, value in section.items() if name != "costs"}))
    wide = Console(width=None if sys.stdout.isatty() else 160)
    for sheet in _cost_sheets(report.get("model")):
        wide.print(terminal_table(sheet))


def _cost_sheets(model: Mapping[str, Any] | None) -> list[Sheet]:
    """What is known of the costs of the model's rounds."""
    from ..bench.calibrate import cost_sheets
    from ..core.costs import CostTable

    if model is None or model["costs"] is None:
        return []
    return cost_sheets(CostTable.from_json(model["costs"]), model["spec_tokens"])


def _table(title: str, section: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(title=title.capitalize(), title_justify="left", show_header=False, title_style="bold")
    for name, value in section.items():
        if isinstance(value, Mapping):
            for inner, detail in value.items():
                table.add_row(f"{name} · {inner}".replace("_", " "), _shown(inner if name == "memory" else "", detail))
        else:
            table.add_row(name.replace("_", " "), _shown(name, value))
    return table


_BYTES = {"memory_available", "base", "weights", "kv_cache", "transient", "total"}


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "–"
    return f"{value / 1e9:.2f} GB" if name in _BYTES else str(value)
