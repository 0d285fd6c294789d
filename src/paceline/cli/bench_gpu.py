"""``paceline bench decode --shape``: the GPU benchmark on random weights. Reads flags and prints; its last line is
JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, PacelineError
from .options import LIMITS, MODEL, OUTPUT, Flag

if TYPE_CHECKING:
    from ..bench.gpu.settings import GpuSettings

GPU = "Random weights on a GPU"

GPU_FLAGS = (
    Flag(
        "shape", str, "Measure random weights of a public shape instead of a model: qwen3-8b, llama-3.1-8b ...", MODEL
    ),
    Flag("grid", str, "Streams decoded together, comma-separated; default: 1,2,4,8,16,32,64.", GPU),
    Flag("forced", str, "Forced acceptance of a proposal, comma-separated; default: 0,0.3,0.6,0.8,0.95.", GPU),
    Flag("parts", str, "Measure these only: bandwidth, forward, plain, table, draft, grid, idle, null, peers.", GPU),
    Flag("length", float, "Forced mean acceptance length of the part 'table'; default: 3.", GPU),
    Flag("budget", float, "Seconds after which no further part is started; default: 540.", LIMITS),
    Flag("json_file", str, "Write the JSON document to this file after every part.", OUTPUT, ("--json-file",)),
)
#: Flags of measurements of a model that mean nothing here: given, they are refused.
_OF_MODELS = ("model", "revision", "spec_method", "spec_model", "prompts", "limit", "classes", "batch", "threads")


def measure_shape(values: dict[str, Any]) -> None:
    """Run the measurement and print its tables; files are written after every part, so that a broken run keeps what it
    has. Raises the first failure at the end."""
    from rich.console import Console

    from ..bench.gpu import picture, report
    from ..bench.gpu.run import measure_gpu
    from ..bench.sheets import terminal_table

    settings = gpu_settings(values)
    settings.check()

    def keep(document: dict[str, Any], part: str) -> None:
        failure = document["parts"][part].get("failure")
        print(f"{part}: {failure or 'measured'} ({document['seconds']:.0f} s)", file=sys.stderr, flush=True)
        if values["report"] is not None:
            Path(values["report"]).write_text(report.markdown(document), encoding="utf-8")
        if values["json_file"] is not None:
            Path(values["json_file"]).write_text(json.dumps(document), encoding="utf-8")

    document = measure_gpu(settings, keep)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for line in report.lead(document):
        console.print(line, highlight=False)
    for sheet in report.sheets(document):
        console.print(terminal_table(sheet))
    for part, text in report.worst(document).items():
        console.print(f"worst of {part}: {text}", highlight=False)
    if values["plot"] is not None:
        picture.draw(document, Path(values["plot"]))
    print(json.dumps(document))
    broken = [f"{name}: {part['failure']}" for name, part in document["parts"].items() if "failure" in part]
    if broken:
        raise PacelineError(f"{len(broken)} parts were not measured; {broken[0]}")


def gpu_settings(values: dict[str, Any]) -> GpuSettings:
    """The settings that the flags mean. Raises :class:`ConfigError` for flags that have no meaning here."""
    from ..bench.gpu.settings import PARTS, SLOW_PARTS, GpuSettings

    for name in _OF_MODELS:
        if values.get(name) not in (None, [], (), 0):
            raise ConfigError(name, "has no meaning with --shape, which measures random weights")
    chosen = tuple(name for name in PARTS if name not in SLOW_PARTS or values["peers"])
    wanted = {
        "device": values["device"] or "cuda",
        "dtype": values["dtype"],
        "parts": _words(values["parts"]) or chosen,
        "batches": tuple(_numbers("grid", values["grid"], int)),
        "rates": tuple(_numbers("forced", values["forced"], float)),
        "depth": values["spec_tokens"],
        "length": values["length"],
        "tokens": values["max_tokens"],
        "budget": values["budget"],
        "seed": values["seed"],
    }
    return GpuSettings(
        shape=values["shape"], **{name: value for name, value in wanted.items() if value not in (None, ())}
    )


def refuse_without_shape(values: dict[str, Any]) -> None:
    """Flags of the GPU benchmark need ``--shape``."""
    for flag in GPU_FLAGS[1:]:
        if values[flag.name] is not None:
            raise ConfigError(flag.name, "needs --shape")


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _numbers(name: str, text: str | None, kind: type) -> list[Any]:
    try:
        return [kind(word) for word in _words(text)]
    except ValueError:
        raise ConfigError(name, f"must list numbers, not {text!r}") from None
