"""``paceline bench serve``: load on OpenAI endpoints. Reads flags, lets :mod:`paceline.bench.serve` send, prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import DEBUG_FLAG, LIMITS, MODEL, OUTPUT, SPECULATION, Flag, with_options

if TYPE_CHECKING:
    from ..bench.serve import ServeSettings

WORKLOAD, LOAD = "Workload", "Load"

SERVE_FLAGS = (
    Flag("url", list[str], "Endpoint, as URL or NAME=URL; repeated: all are compared with the first.", MODEL),
    Flag("model", list[str], "Model name; one for all endpoints, or one each. Default: the first each lists.", MODEL),
    Flag("api", str, "chat (the default) or completions.", MODEL, default="chat"),
    Flag("api_key", list[str], "Key; one for all endpoints, or one each.", MODEL),
    Flag("plain", bool, "Compare with the first endpoint with speculation off.", SPECULATION),
    Flag(
        "prompts",
        list[str],
        "copy, prose, summarise, code-edit, extract, json (these ship) or PATH[:CATEGORY] of a .jsonl; repeatable.",
        WORKLOAD,
    ),
    Flag("limit", int, "Most prompts of each workload.", WORKLOAD),
    Flag("max_tokens", int, "Most tokens per answer.", WORKLOAD, ("--max-tokens", "-n"), default=128),
    Flag("temperature", float, "Of every request.", WORKLOAD, default=0.0),
    Flag("ignore_eos", bool, "Every answer has exactly --max-tokens tokens.", WORKLOAD, default=False),
    Flag("extra", str, "Further fields of every body, as a JSON object.", WORKLOAD),
    Flag("requests", int, "Requests per endpoint.", LOAD, default=64),
    Flag("rate", float, "Requests per second, at random times that wait for no answer (default: 1).", LOAD),
    Flag("concurrency", int, "Instead of --rate: so many requests in flight, the next when one ends.", LOAD),
    Flag("blocks", int, "Parts of the run, in which the endpoints take turns.", LOAD, default=4),
    Flag("warm_up", int, "Requests per endpoint before the measurement.", LOAD, default=2),
    Flag("seed", int, "Of arrivals, prompt order and requests.", LOAD, default=0),
    Flag("timeout", float, "Seconds an answer may take.", LIMITS, default=600.0),
    Flag("target_ttft_ms", float, "Latest first token that counts for goodput.", LIMITS, default=2000.0),
    Flag("target_tpot_ms", float, "Longest time per token that counts for goodput.", LIMITS, default=200.0),
    Flag("report", str, "Write a Markdown report to this file.", OUTPUT),
    Flag("plot", str, "Write a picture (PNG) to this file; needs the extra 'plot'.", OUTPUT),
    DEBUG_FLAG,
)


@with_options(SERVE_FLAGS)
def serve(**values: Any) -> None:
    """Send requests to OpenAI endpoints at random times or at a fixed concurrency, and report their latencies.

    Tokens are counted by the endpoints' usage. Endpoints take turns in blocks with the same requests at the same
    offsets, so that a drift of the machine meets all of them. The exit code is 1 if an endpoint answered nothing.
    """
    from ..bench import plot, serve_report
    from ..bench.serve import measure_serve
    from ..core.errors import PacelineError
    from .bench import bar, check_writable, load_average

    settings = serve_settings(values)
    settings.check()
    if values["plot"] is not None:
        plot.require_plot()
    for name in ("report", "plot"):
        check_writable(name, values[name])
    before = load_average()
    with bar() as progress:
        found = measure_serve(settings, progress)
    load = (before, load_average())
    _show(serve_report.renderables(found, load))
    if values["report"] is not None:
        Path(values["report"]).write_text(serve_report.markdown(found, load), encoding="utf-8")
    if values["plot"] is not None:
        serve_report.draw(found, Path(values["plot"]))
    print(json.dumps(serve_report.document(found, load), ensure_ascii=False))
    for arm in found.arms:
        failed = [answer for answer in found.answers(arm.name) if answer.error is not None]
        if len(failed) == len(found.answers(arm.name)):
            raise PacelineError(f"{arm.name} answered no request: {failed[0].error}: {failed[0].message}")


def serve_settings(values: dict[str, Any]) -> ServeSettings:
    """The flags as settings; :class:`ConfigError` for what cannot be read or stands in each other's way."""
    from ..bench.serve import ServeSettings
    from ..bench.workloads import BUILTIN
    from ..core.errors import ConfigError

    if values["rate"] is not None and values["concurrency"] is not None:
        raise ConfigError("concurrency", "is the other way to send than rate; leave one out")
    open_loop = values["concurrency"] is None
    same = ("api", "limit", "max_tokens", "temperature", "ignore_eos", "requests", "blocks", "warm_up", "seed")
    more = ("timeout", "target_ttft_ms", "target_tpot_ms")
    return ServeSettings(
        urls=tuple(values["url"] or ()),
        models=tuple(values["model"] or ()),
        api_keys=tuple(values["api_key"] or ()),
        plain=bool(values["plain"]),
        prompts=tuple(values["prompts"] or BUILTIN),
        rate=(1.0 if values["rate"] is None else values["rate"]) if open_loop else None,
        concurrency=1 if open_loop else values["concurrency"],
        extra=_extra(values["extra"]),
        **{name: values[name] for name in (*same, *more)},
    )


def _extra(text: str | None) -> dict[str, Any]:
    from ..core.errors import ConfigError

    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError("extra", f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("extra", "must be a JSON object")
    return fields


def _show(items: list[Any]) -> None:
    import sys

    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 220)
    for item in items:
        console.print(item)
