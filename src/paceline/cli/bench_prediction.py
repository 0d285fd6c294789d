"""``paceline bench prediction``: reads flags, lets :mod:`paceline.bench.prediction` measure, prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import DEBUG_FLAG, LIMITS, MODEL, OUTPUT, RUNTIME, SPECULATION, Flag, with_options

if TYPE_CHECKING:
    from ..bench.prediction import PredictionSettings

WORKLOAD = "Workload"

PREDICTION_FLAGS = (
    Flag("model", str, "demo (the default), a directory or a hub id.", MODEL, ("--model", "-m")),
    Flag("dtype", str, "Number format; bfloat16 is the default.", MODEL),
    Flag("device", str, "auto (the default), cpu, cuda or mps.", MODEL),
    Flag("spec_method", str, "Drafter beside the prediction; none is the default.", SPECULATION),
    Flag(
        "prompts",
        list[str],
        "copy (the default), prose (these ship with paceline) or PATH[:CATEGORY] of a .jsonl file; may be repeated.",
        WORKLOAD,
    ),
    Flag("lines", int, "Lines of all answers together.", WORKLOAD),
    Flag("max_tokens", int, "Most tokens of one answer.", WORKLOAD, ("--max-tokens", "-n")),
    Flag("every", str, "Lines per edit of the prediction, comma-separated.", WORKLOAD),
    Flag("repeats", int, "Interleaved runs.", LIMITS),
    Flag("threads", int, "CPU threads.", RUNTIME, ("--threads", "--num-threads")),
    Flag("report", str, "Write a Markdown report to this file.", OUTPUT),
    DEBUG_FLAG,
)


@with_options(PREDICTION_FLAGS)
def prediction(**values: Any) -> None:
    """Answer requests plainly, edit the answers by a script, and give them back as predictions of the same requests.

    Plain and predicted runs take turns in one engine; speed-ups carry 95 percent bootstrap bounds.
    """
    from rich.console import Console

    from ..bench import prediction_report as report
    from ..bench.prediction import measure_prediction
    from .bench import bar, check_writable, load_average

    settings = _settings(values)
    settings.check()
    check_writable("report", values["report"])
    before = load_average()
    with bar() as progress:
        found = measure_prediction(settings, progress)
    load = (before, load_average())
    console = Console(width=None if sys.stdout.isatty() else 220)
    for item in report.renderables(found, load):
        console.print(item)
    if values["report"] is not None:
        Path(values["report"]).write_text(report.markdown(found, load), encoding="utf-8")
    print(json.dumps(report.document(found, load), ensure_ascii=False))
    if found.failure is not None:
        raise found.failure


def _settings(values: dict[str, Any]) -> PredictionSettings:
    from dataclasses import fields

    from ..bench.prediction import PredictionSettings
    from ..core.errors import ConfigError

    names = {field.name for field in fields(PredictionSettings)} - {"every", "prompts"}
    chosen = {name: values[name] for name in names if values[name] is not None}
    if values["prompts"]:
        chosen["prompts"] = tuple(values["prompts"])
    if values["every"] is not None:
        try:
            chosen["every"] = tuple(int(word) for word in values["every"].split(","))
        except ValueError:
            raise ConfigError("every", f"must be whole numbers with commas between, not {values['every']!r}") from None
    return PredictionSettings(**chosen)
