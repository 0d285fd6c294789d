"""What a serve benchmark found, as JSON, as tables for a terminal, as Markdown, and as a picture. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .pairs import Bound
from .serve import ServeMeasurement
from .serve_figures import DEFINITIONS, ServedFigures, Spread, served_figures
from .sheets import Sheet, markdown_page, terminal_table

if TYPE_CHECKING:
    from rich.console import RenderableType

Load = Sequence[Sequence[float]]


def document(measurement: ServeMeasurement, load: Load) -> dict[str, Any]:
    """Everything as plain JSON. ``load``: the client machine's load averages before and after."""
    return {
        "bench": "serve",
        "version": __version__,
        "load_average": [list(entry) for entry in load],
        "settings": measurement.settings.document(),
        "arms": [
            {
                "name": arm.name,
                "url": arm.endpoint.root,
                "model": arm.endpoint.model,
                "extra": arm.endpoint.extra,
                "server": measurement.versions[arm.name],
            }
            for arm in measurement.arms
        ],
        "figures": [figures.document() for figures in served_figures(measurement)],
        "definitions": DEFINITIONS,
    }


def sheets(measurement: ServeMeasurement) -> list[Sheet]:
    """All tables of a report, in reading order."""
    found = served_figures(measurement)
    tables = [_rate_sheet(found, measurement), _latency_sheet(found)]
    if any(figures.acceptance is not None for figures in found):
        tables.append(_acceptance_sheet(found))
    if any(figures.errors for figures in found):
        tables.append(_error_sheet(found))
    return tables


def _rate_sheet(found: Sequence[ServedFigures], measurement: ServeMeasurement) -> Sheet:
    settings = measurement.settings
    rows = []
    for figures in found:
        rows.append(
            (
                figures.arm,
                f"{figures.completed}/{figures.requests}",
                f"{figures.output_tokens_per_second:.1f}",
                f"{figures.requests_per_second:.2f}",
                f"{figures.goodput:.2f}",
                f"{figures.within_targets:.0%}",
                _shown(figures.against),
                f"{figures.same_text}/{figures.compared}" if figures.compared else "–",
            )
        )
    headings = ("endpoint", "complete", "output tok/s", "req/s", "goodput req/s", "in targets", "speed-up", "same text")
    note = (
        f"Targets: first token within {settings.target_ttft_ms:g} ms, {settings.target_tpot_ms:g} ms per token. "
        f"Speed-up: {DEFINITIONS['speedup']}; the base is {found[0].arm}."
    )
    return Sheet("Rates", headings, rows, note)


def _latency_sheet(found: Sequence[ServedFigures]) -> Sheet:
    rows = []
    for figures in found:
        for name, spread in _latencies(figures):
            if spread is not None:
                numbers = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
                rows.append((figures.arm, name, str(spread.count), *(f"{number:.1f}" for number in numbers)))
    headings = ("endpoint", "ms", "samples", "mean", "p50", "p90", "p99", "max")
    note = (
        f"TTFT: {DEFINITIONS['ttft_ms']}. ITL: {DEFINITIONS['itl_ms']}. TPOT: {DEFINITIONS['tpot_ms']}. "
        f"The client sent at most {max(figures.lag_ms for figures in found):.1f} ms late."
    )
    return Sheet("Latency", headings, rows, note)


def _latencies(figures: ServedFigures) -> list[tuple[str, Spread | None]]:
    return [
        ("TTFT", figures.ttft_ms),
        ("ITL", figures.itl_ms),
        ("TPOT", figures.tpot_ms),
        ("whole answer", figures.latency_ms),
    ]


def _acceptance_sheet(found: Sequence[ServedFigures]) -> Sheet:
    rows = []
    for figures in found:
        spec = figures.acceptance
        if spec is not None:
            forwards = "–" if spec.tokens_per_forward is None else f"{spec.tokens_per_forward:.2f}"
            shares = (f"{spec.mean_acceptance_length:.2f}", f"{spec.draft_acceptance_rate:.0%}")
            rows.append((figures.arm, forwards, *shares, str(spec.drafted), str(spec.accepted)))
    headings = ("endpoint", "tokens per forward", "mean acceptance length", "accepted", "drafted", "accepted tokens")
    return Sheet("Acceptance", headings, rows, f"Mean acceptance length: {DEFINITIONS['mean_acceptance_length']}.")


def _error_sheet(found: Sequence[ServedFigures]) -> Sheet:
    rows = [
        (figures.arm, kind, str(count), " ".join(figures.examples[kind].split())[:120])
        for figures in found
        for kind, count in sorted(figures.errors.items())
    ]
    return Sheet("Errors", ("endpoint", "kind", "requests", "one of them"), rows)


def heading_lines(measurement: ServeMeasurement, load: Load) -> list[str]:
    """What was sent, and how busy the client's machine was."""
    settings = measurement.settings
    arrivals = (
        f"{settings.concurrency} at a time"
        if settings.rate is None
        else f"{settings.rate:g} requests per second (Poisson)"
    )
    plan = (
        f"{settings.requests} requests per endpoint, {arrivals}, in {settings.blocks} interleaved blocks, at most "
        f"{settings.max_tokens} tokens, temperature {settings.temperature:g}, seed {settings.seed}"
    )
    return [plan, f"Load average of the client's machine: {load[0][0]:.2f} before, {load[-1][0]:.2f} after."]


def renderables(measurement: ServeMeasurement, load: Load) -> list[RenderableType]:
    """The report for a terminal."""
    return [*heading_lines(measurement, load), *(terminal_table(sheet) for sheet in sheets(measurement))]


def markdown(measurement: ServeMeasurement, load: Load) -> str:
    """The report as a Markdown page."""
    return markdown_page("Serve benchmark", heading_lines(measurement, load), sheets(measurement))


def draw(measurement: ServeMeasurement, path: Path) -> None:
    """Write a PNG: shares of requests by TTFT and by TPOT, and rates. Needs the extra ``plot``."""
    from .plot import figure_class

    canvas = figure_class()(figsize=(13.0, 4.5), layout="constrained")
    firsts, each, rates = canvas.subplots(1, 3)
    settings = measurement.settings
    for arm in measurement.arms:
        complete = [answer for answer in measurement.answers(arm.name) if answer.ok]
        _draw_shares(firsts, arm.name, [answer.first_seconds for answer in complete])
        _draw_shares(each, arm.name, [answer.seconds_per_token for answer in complete])
    for axes, title, target in (
        (firsts, "time to first token, ms", settings.target_ttft_ms),
        (each, "time per output token, ms", settings.target_tpot_ms),
    ):
        axes.axvline(target, color="grey", linewidth=0.8)
        axes.set_xlabel(f"{title} (grey: target)")
        axes.set_ylabel("share of complete answers")
        axes.legend(fontsize=8)
    _draw_rates(rates, served_figures(measurement))
    canvas.suptitle(heading_lines(measurement, [(0.0,)])[0], fontsize=10)
    canvas.savefig(path, dpi=130)


def _draw_shares(axes: Any, name: str, seconds: Sequence[float | None]) -> None:
    ordered = sorted(1e3 * value for value in seconds if value is not None)
    axes.step(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))], where="post", label=name)


def _draw_rates(axes: Any, found: Sequence[ServedFigures]) -> None:
    rates = [figures.output_tokens_per_second for figures in found]
    bars = axes.bar([figures.arm for figures in found], rates, color=[f"C{place}" for place in range(len(found))])
    axes.bar_label(bars, [f"{f.output_tokens_per_second:.0f}\ngoodput {f.goodput:.2f}/s" for f in found], fontsize=8)
    axes.margins(y=0.2)
    axes.set_ylabel("output tokens per second")


def _shown(bound: Bound | None) -> str:
    return "–" if bound is None else f"{bound.value:.2f}x [{bound.low:.2f}, {bound.high:.2f}]"
