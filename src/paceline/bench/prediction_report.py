"""What ``bench prediction`` found, as a table and as one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import __version__
from .prediction import Case, PredictionMeasurement, Runs
from .sheets import Sheet, markdown_page, terminal_table
from .workloads import ngrams

if TYPE_CHECKING:
    from rich.console import RenderableType

_NOTE = (
    "Speed-up of decoding, first token to end: geometric mean over the answers with 95 percent bootstrap bounds over "
    "interleaved pairs. Tokens per forward: tokens behind the first over target forwards behind the prefill. "
    "Proposing: CPU time of everything spans do in a round."
)


@dataclass(frozen=True)
class Totals:
    """One way of answering, over all answers: the median repeat of each, behind its first token."""

    tokens: int
    forwards: int
    accepted: int
    rejected: int
    seconds: float
    same_tokens: bool

    @classmethod
    def of(cls, runs: Runs) -> Totals:
        firsts = [each[0] for each in runs]
        return cls(
            tokens=sum(run.tokens - 1 for run in firsts),
            forwards=sum(run.forwards for run in firsts),
            accepted=sum(run.accepted for run in firsts),
            rejected=sum(run.rejected for run in firsts),
            seconds=sum(statistics.median([run.seconds for run in each]) for each in runs),
            same_tokens=all(run.same_tokens for each in runs for run in each),
        )

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def document(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Everything as plain JSON. ``load``: the machine's load averages before and after."""
    settings = asdict(found.settings)
    plain = Totals.of(found.plain)
    return {
        "bench": "prediction",
        "version": __version__,
        "settings": settings | {name: list(settings[name]) for name in ("prompts", "every")},
        "engine": found.engine,
        "load": [list(each) for each in load],
        "answers": [
            {"name": answer.name, "tokens": len(answer.tokens), "lines": len(answer.lines)} for answer in found.answers
        ],
        "left_out": found.left_out,
        "tokens": plain.tokens,
        "lines": _lines(found),
        "distinct": _distinct(found),
        "plain": {"tokens_per_second": plain.tokens_per_second},
        "cases": [_case_document(found, case) for case in found.cases],
        "same_tokens": found.same_tokens,
    }


def _case_document(found: PredictionMeasurement, case: Case) -> dict[str, Any]:
    totals = Totals.of(found.runs[case.every])
    return {
        "every": case.every,
        "edits": dict(case.edits),
        "tokens_per_second": totals.tokens_per_second,
        "speedup": asdict(found.gain(case.every)),
        "total_speedup": Totals.of(found.plain).seconds / totals.seconds,
        "forwards": totals.forwards,
        "tokens_per_forward": totals.tokens_per_forward,
        "accepted_prediction_tokens": totals.accepted,
        "rejected_prediction_tokens": totals.rejected,
        "proposer_us_mean": _proposing(case)[0],
        "proposer_us_worst": _proposing(case)[1],
        "index_ms": 1e3 * sum(each.index_seconds for each in case.replays),
    }


def _proposing(case: Case) -> tuple[float, float]:
    """Microseconds that proposing takes in a round, on average and at worst."""
    seconds = [second for each in case.replays for second in each.seconds]
    return 1e6 * statistics.fmean(seconds), 1e6 * max(seconds)


def _lines(found: PredictionMeasurement) -> int:
    return sum(len(answer.lines) for answer in found.answers)


def _distinct(found: PredictionMeasurement) -> float:
    """Different 4-grams over all 4-grams of the answers: low values mean that they go in circles."""
    grams = [gram for answer in found.answers for gram in ngrams(answer.tokens)]
    return len(set(grams)) / len(grams) if grams else 1.0


def heading_lines(found: PredictionMeasurement, load: Sequence[Sequence[float]]) -> list[str]:
    engine, settings, plain = found.engine, found.settings, Totals.of(found.plain)
    where = (
        f"{engine['model']} in {engine['dtype']} on {engine['device']}, {engine['num_threads']} threads, drafter "
        f"{engine['drafter']}, exactness {engine['exactness']}; load average {load[0][0]:.2f} before, "
        f"{load[-1][0]:.2f} after"
    )
    what = (
        f"{len(found.answers)} greedy answers, {_lines(found)} lines and {plain.tokens} tokens together, "
        f"{_distinct(found):.0%} of their 4-grams distinct, recorded plainly; {settings.repeats} interleaved repeats; "
        f"plain {plain.tokens_per_second:.1f} tokens/s"
    )
    lines = [where, what]
    if found.left_out:
        lines.append(f"Left out, too short or going in circles: {', '.join(found.left_out)}.")
    if _lines(found) < settings.lines:
        lines.append(f"The prompts have answers of fewer than the {settings.lines} lines asked for.")
    return lines


def sheet(found: PredictionMeasurement) -> Sheet:
    rows = []
    for case in found.cases:
        totals, gain = Totals.of(found.runs[case.every]), found.gain(case.every)
        mean, worst = _proposing(case)
        rows.append(
            (
                case.name,
                str(case.edits.total()),
                f"{totals.tokens_per_second:.1f}",
                f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]",
                f"{totals.tokens_per_forward:.2f}",
                str(totals.accepted),
                str(totals.rejected),
                f"{mean:.0f} ({worst:.0f})",
                "yes" if totals.same_tokens else "NO",
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
