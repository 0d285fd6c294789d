"""What ``bench prediction`` found, as a table and as one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import __version__
from .prediction import Case, PredictionMeasurement, PredictionRun
from .sheets import Sheet, markdown_page, terminal_table
from .workloads import ngrams

if TYPE_CHECKING:
    from rich.console import RenderableType

_NOTE = (
    "Speed-up of decoding, first token to end, with 95 percent bootstrap bounds over interleaved pairs. Tokens per "
    "forward: delivered tokens over target forwards behind the prefill. Proposing: everything spans do in a round."
)


def document(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Everything as plain JSON. ``load``: the machine's load averages before and after."""
    settings = asdict(found.settings) | {"every": list(found.settings.every)}
    return {
        "bench": "prediction",
        "version": __version__,
        "settings": settings,
        "engine": found.engine,
        "load": [list(each) for each in load],
        "answer": {"tokens": len(found.tokens), "lines": found.lines, "distinct": _distinct(found.tokens)},
        "plain": {"seconds": [run.seconds for run in found.plain], "tokens_per_second": _speed(found, found.plain)},
        "cases": [_case_document(found, case) for case in found.cases],
        "same_tokens": all(run.same_tokens for runs in (found.plain, *found.runs.values()) for run in runs),
    }


def _case_document(found: PredictionMeasurement, case: Case) -> dict[str, Any]:
    runs = found.runs[case.every]
    replayed = case.replay
    return {
        "every": case.every,
        "edits": dict(case.edits),
        "seconds": [run.seconds for run in runs],
        "tokens_per_second": _speed(found, runs),
        "speedup": asdict(found.gain(case.every)),
        "forwards": runs[0].forwards,
        "tokens_per_forward": runs[0].tokens_per_forward,
        "accepted_prediction_tokens": runs[0].accepted,
        "rejected_prediction_tokens": runs[0].rejected,
        "proposer_us_mean": replayed.mean_microseconds,
        "proposer_us_worst": replayed.worst_microseconds,
        "index_ms": 1e3 * replayed.index_seconds,
    }


def _speed(found: PredictionMeasurement, runs: Sequence[PredictionRun]) -> float:
    """Tokens per second behind the first one, of the median run."""
    return (len(found.tokens) - 1) / statistics.median([run.seconds for run in runs])


def _distinct(tokens: Sequence[int]) -> float:
    """Different 4-grams over all 4-grams: low values mean that the answer goes in circles."""
    grams = ngrams(tokens)
    return len(set(grams)) / len(grams) if grams else 1.0


def heading_lines(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> list[str]:
    engine, settings = found.engine, found.settings
    where = (
        f"{engine['model']} in {engine['dtype']} on {engine['device']}, {engine['num_threads']} threads, drafter "
        f"{engine['drafter']}, exactness {engine['exactness']}; load average {load[0][0]:.2f} before, "
        f"{load[-1][0]:.2f} after"
    )
    what = (
        f"answer of {len(found.tokens)} tokens in {found.lines} lines, temperature {settings.temperature:g}, "
        f"{_distinct(found.tokens):.0%} of its 4-grams distinct, recorded plainly; {settings.repeats} interleaved "
        f"repeats; plain {_speed(found, found.plain):.1f} tokens/s"
    )
    lines = [where, what]
    if found.lines < settings.lines:
        lines.append(f"The answer has fewer than the {settings.lines} lines asked for; see --max-tokens.")
    return lines


def sheet(found: PredictionMeasurement) -> Sheet:
    rows = []
    for case in found.cases:
        runs, gain = found.runs[case.every], found.gain(case.every)
        rows.append(
            (
                case.name,
                str(sum(case.edits.values())),
                f"{_speed(found, runs):.1f}",
                f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]",
                f"{runs[0].tokens_per_forward:.2f}",
                str(runs[0].accepted),
                str(runs[0].rejected),
                f"{case.replay.mean_microseconds:.0f} ({case.replay.worst_microseconds:.0f})",
                "yes" if all(run.same_tokens for run in runs) else "NO",
            )
        )
    headings = ("prediction", "edits", "tok/s", "speed-up", "tokens per forward", "accepted", "rejected")
    return Sheet("Predicted outputs", (*headings, "proposing, µs a round (worst)", "same tokens"), rows, _NOTE)


def renderables(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> list[RenderableType]:
    """The report for a terminal."""
    return [*heading_lines(found, load), terminal_table(sheet(found))]


def markdown(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> str:
    """The report as a Markdown page."""
    return markdown_page("Prediction benchmark", heading_lines(found, load), [sheet(found)])
