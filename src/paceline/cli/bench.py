"""``paceline bench``: benchmarks. Reads flags, lets :mod:`paceline.bench` measure, prints; the last line is JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import bench_calibrate, bench_prediction, bench_serve, bench_simulate
from .bench_gpu import GPU_FLAGS, measure_shape, refuse_without_shape
from .bench_phases import PHASE_FLAGS, refuse_without_phases, show_phases
from .options import CONFIG_FLAG, LIMITS, MODEL, OUTPUT, RUNTIME, SPECULATION, Flag, with_options

if TYPE_CHECKING:
    from ..bench.decode import DecodeSettings, Measurement, Progress

WORKLOAD = "Workload"

app = typer.Typer(no_args_is_help=True, help="Benchmarks; the last line of their output is one JSON document.")

_DECODE_FLAGS = (
    Flag("model", str, "demo (the default), a directory or a hub id.", MODEL, ("--model", "-m")),
    CONFIG_FLAG,
    Flag("revision", str, "Branch, tag or commit of a hub model.", MODEL),
    Flag("dtype", str, "Number formats, comma-separated: float32, bfloat16 (the default), int8, auto.", MODEL),
    Flag("device", str, "auto (the default), cpu, cuda or mps.", MODEL),
    Flag("spec_method", str, "Drafters, comma-separated; default: all that need no weights.", SPECULATION),
    Flag("spec_model", str, "Weights, for drafters that have any.", SPECULATION, ("--spec-model", "--draft-model")),
    Flag("spec_tokens", int, "Most proposals per round; default: each drafter's own.", SPECULATION),
    Flag(
        "prompts",
        list[str],
        "copy, prose (these ship with paceline) or PATH[:CATEGORY] of a .jsonl file; may be repeated.",
        WORKLOAD,
    ),
    Flag("limit", int, "Most prompts of each workload.", WORKLOAD),
    Flag("max_tokens", int, "Most tokens per answer.", WORKLOAD, ("--max-tokens", "-n"), default=256),
    Flag("min_tokens", int, "Answers that are shorter are not measured.", WORKLOAD, default=24),
    Flag("ignore_eos", bool, "Every answer has exactly --max-tokens tokens.", WORKLOAD, default=False),
    Flag("classes", str, "Measure these only, comma-separated: copy-heavy, free, repetitive.", WORKLOAD),
    Flag("repeats", int, "Interleaved runs of every prompt.", LIMITS, default=3),
    Flag("batch", int, "Also decode groups of this many prompts together; 0 = no.", LIMITS, default=0),
    Flag("threads", int, "CPU threads.", RUNTIME, ("--threads", "--num-threads")),
    Flag("peers", bool, "Also run transformers generate, with and without prompt lookup.", RUNTIME, default=None),
    Flag("seed", int, "Seed of the bootstrap.", RUNTIME, default=0),
    Flag("report", str, "Write a Markdown report to this file.", OUTPUT),
    Flag("plot", str, "Write a picture (PNG) to this file; needs the extra 'plot'.", OUTPUT),
    *PHASE_FLAGS,
    *GPU_FLAGS,
    Flag("debug", bool, "Show the traceback of an error.", OUTPUT, default=False),
)


@app.callback()
def _bench() -> None:
    """Benchmarks; the last line of their output is one JSON document."""


@app.command("decode", short_help="Plain decoding, drafters and transformers on the same prompts, in interleaved runs.")
@with_options(_DECODE_FLAGS)
def decode(**values: Any) -> None:
    """Measure decoding: plain, with each drafter, and with transformers generate, on the same model and prompts.

    Runs are interleaved and speed-ups carry 95 percent bootstrap bounds. A plain pass before the measurement sorts the
    prompts by how much of their answer is copied from the prompt.

    With --phases: where the time of a round goes instead. With --shape: random weights of a public shape on a GPU,
    measured against what its memory can deliver.
    """
    from ..bench import plot, report
    from ..bench.decode import measure_decode

    if values["plot"] is not None:
        plot.require_plot()
    for name in ("report", "plot", "json_file"):
        check_writable(name, values[name])
    if values["shape"] is not None:
        measure_shape(_over_file(values))
        return
    refuse_without_shape(values)
    settings = _settings(_over_file(values))
    if values["phases"]:
        replace(settings, peers=False).check()
        show_phases(replace(settings, peers=False), values)
        return
    refuse_without_phases(values)
    settings.check()
    before = load_average()
    with bar() as progress:
        found = measure_decode(settings, progress)
    load = (before, load_average())
    _show(found, load)
    if values["report"] is not None:
        Path(values["report"]).write_text(report.markdown(found, load), encoding="utf-8")
    if values["plot"] is not None:
        plot.draw(found, Path(values["plot"]))
    print(json.dumps(report.document(found, load), ensure_ascii=False))
    failure = report.first_failure(found)
    if failure is not None:
        raise failure


app.command("calibrate", short_help="What rounds and drafts cost on this machine, as a table and a picture.")(
    bench_calibrate.calibrate
)
app.command("prediction", short_help="Predicted outputs: a recorded answer with edits, against plain decoding.")(
    bench_prediction.prediction
)
app.command("serve", short_help="Load on OpenAI endpoints: latencies, goodput, acceptance; two or more compared.")(
    bench_serve.serve
)
app.command("simulate", short_help="Depth policies on recorded traces against cost tables; runs no model.")(
    bench_simulate.simulate
)


#: Settings that a file may give -> the flag whose place they take.
_FROM_FILE = {
    name: name for name in ("model", "revision", "dtype", "device", "spec_method", "spec_model", "spec_tokens")
}
_FROM_FILE["num_threads"] = "threads"


def _over_file(values: dict[str, Any]) -> dict[str, Any]:
    """The flags over the settings of the file that ``--config`` names. What cannot be honoured is refused."""
    from ..core.errors import ConfigError
    from .settings import SAMPLING_SECTION, read_config

    path = values["config"]
    if path is None:
        return values
    file = read_config(path)
    for name in (*file.engine, *([SAMPLING_SECTION] if file.sampling else [])):
        if name not in _FROM_FILE:
            known = ", ".join(_FROM_FILE)
            raise ConfigError(f"{path}: {name}", f"has no place in this benchmark, which takes {known} from a file")
    taken = {_FROM_FILE[name]: value for name, value in file.engine.items()}
    return values | {flag: value for flag, value in taken.items() if values[flag] is None}


def _settings(values: dict[str, Any]) -> DecodeSettings:
    from ..bench.decode import DecodeSettings
    from ..bench.workloads import BUILTIN

    same = ("model", "revision", "device", "spec_model", "spec_tokens", "limit", "max_tokens", "min_tokens")
    more = ("ignore_eos", "repeats", "batch", "threads", "seed")
    return DecodeSettings(
        dtypes=_words("bfloat16" if values["dtype"] is None else values["dtype"]),
        methods=_words(values["spec_method"]),
        prompts=tuple(values["prompts"] or BUILTIN),
        classes=_words(values["classes"]),
        peers=values["peers"] is not False,
        **{name: values[name] for name in (*same, *more) if values[name] is not None},
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def check_writable(name: str, path: str | None) -> None:
    """A file that cannot be written is refused before the run, not after it."""
    from ..core.errors import ConfigError

    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(name, f"{path} lies in a directory that does not exist")


def load_average() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except (AttributeError, OSError):  # not every system has one
        return (0.0, 0.0, 0.0)


def _show(found: Measurement, load: tuple[tuple[float, ...], ...]) -> None:
    from rich.console import Console

    from ..bench import report

    console = Console(width=None if sys.stdout.isatty() else 220)
    for item in report.renderables(found, load):
        console.print(item)


@contextmanager
def bar() -> Iterator[Progress]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda stage, done, total: shown.update(task, description=stage, completed=done, total=total)
