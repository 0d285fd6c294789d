"""``paceline doctor``: what this machine can run and how a model would fit. Prints what the engine finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import typer

from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, JSON_FLAG, MODEL, Flag, with_options

if TYPE_CHECKING:
    from rich.table import Table

_MODEL_FLAG = Flag("model_flag", str, "The same as the argument.", MODEL, ("--model", "-m"))


@with_options((_MODEL_FLAG, CONFIG_FLAG, *ENGINE_FLAGS, JSON_FLAG, DEBUG_FLAG))
def doctor(
    model: Optional[str] = typer.Argument(  # noqa: UP045
        None, help="Also plan for this model: demo, a directory, a .gguf file or a hub id."
    ),
    **values: Any,
) -> None:
    """Say what this machine can run: device, number format, drafters; with a model, its exactness and memory plan.

    A hub model is downloaded if it is not there yet; two of its layers are loaded. Options of requests in a file are
    checked and shown.
    """
    from ..core.errors import RequestError

    if model is not None and values["model_flag"] is not None:
        raise RequestError("model", "is given twice, as an argument and by --model")
    from ..core.config import EngineConfig
    from ..engine.inspect import inspect_machine, inspect_model
    from ..engine.progress import loading_bars
    from .settings import asked_for

    asked = asked_for({**values, "model": model or values["model_flag"]})
    config = EngineConfig.build(**asked.engine)
    report: dict[str, Any] = {"machine": inspect_machine(config)}
    if asked.sampling:
        report["sampling"] = asked.sampling
    if "model" in asked.engine:
        with loading_bars(sys.stderr.isatty()) as progress:
            report["model"] = inspect_model(config, progress)
    if values["as_json"]:
        print(json.dumps(report))
        return
    from rich.console import Console

    console = Console()
    for title, section in report.items():
        console.print(_table(title, section))


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
