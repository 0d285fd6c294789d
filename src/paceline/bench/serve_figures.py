"""From answers to figures: latencies, rates, goodput, acceptance, errors; per endpoint, and against the first one.

Pure arithmetic over :class:`paceline.bench.serve.ServeMeasurement`; prints nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .pairs import Bound, quantile, speedup
from .serve import ServeMeasurement, ServeSettings
from .serve_client import Answer

#: What the figures mean; goes into the report and the JSON document.
DEFINITIONS = {
    "ttft_ms": "from when a request was due to its first text",
    "itl_ms": "between deliveries of text; a delivery may hold several tokens",
    "tpot_ms": "(last delivery - first) / (tokens - 1), tokens by the endpoint's usage",
    "latency_ms": "from when a request was due to the end of its stream",
    "output_tokens_per_second": "usage tokens of complete answers / time of the blocks",
    "goodput": "complete answers per second that kept both latency targets",
    "within_targets": "the same as a share of all requests sent, failed ones included",
    "mean_acceptance_length": "1 + accepted / draft rounds, over complete answers that reported it",
    "tokens_per_forward": "tokens behind the prefill / target forwards behind it, as the endpoint reports",
    "speedup": "geometric mean over requests of TPOT of the base / TPOT here, 95 percent bootstrap bounds",
    "same_text": "complete answers whose text is that of the base on the same request",
    "lag_ms": "how late the client itself sent a request, at most",
}


@dataclass(frozen=True)
class Spread:
    """A sample of times in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> Spread | None:
        """Of the values that are there; ``None`` if none is."""
        ordered = sorted(1e3 * value for value in seconds if value is not None)
        if not ordered:
            return None
        p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(len(ordered), statistics.fmean(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True)
class ServedAcceptance:
    """Totals of what the endpoint reported with its answers; ``tokens_per_forward`` if it says how many forwards."""

    answers: int
    mean_acceptance_length: float
    draft_acceptance_rate: float
    draft_rounds: int
    drafted: int
    accepted: int
    tokens_per_forward: float | None

    @classmethod
    def of(cls, reports: Sequence[dict[str, Any]]) -> ServedAcceptance | None:
        if not reports:
            return None
        rounds, drafted, accepted, forwards = (
            sum(int(report.get(name) or 0) for report in reports)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "forwards")
        )
        tokens = sum((r.get("tokens_per_forward") or 0.0) * (r.get("forwards") or 0) for r in reports)
        return cls(
            answers=len(reports),
            mean_acceptance_length=1.0 + accepted / rounds if rounds else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            draft_rounds=rounds,
            drafted=drafted,
            accepted=accepted,
            tokens_per_forward=tokens / forwards if forwards else None,
        )


@dataclass(frozen=True)
class ServedFigures:
    """One endpoint. ``errors``: kind -> how many; ``examples``: kind -> what one of them said. ``against``: speed-up of
    decoding over the first endpoint, ``same_text`` and ``compared`` with it; ``None`` and 0 for the first itself."""

    arm: str
    requests: int
    completed: int
    errors: dict[str, int]
    examples: dict[str, str]
    seconds: float
    requests_per_second: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    tpot_ms: Spread | None
    latency_ms: Spread | None
    goodput: float
    within_targets: float
    acceptance: ServedAcceptance | None
    lag_ms: float
    against: Bound | None
    compared: int
    same_text: int

    def document(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def served_figures(measurement: ServeMeasurement) -> list[ServedFigures]:
    """Figures of every endpoint, in order; the first is the base of comparisons."""
    base = measurement.arms[0].name
    return [_figures(measurement, arm.name, base) for arm in measurement.arms]


def within_targets(answer: Answer, settings: ServeSettings) -> bool:
    """Whether a complete answer kept both targets; a single token has no TPOT to miss."""
    first, each = answer.first_seconds, answer.seconds_per_token
    if not answer.ok or first is None or 1e3 * first > settings.target_ttft_ms:
        return False
    return each is None or 1e3 * each <= settings.target_tpot_ms


def _figures(measurement: ServeMeasurement, arm: str, base: str) -> ServedFigures:
    answers = measurement.answers(arm)
    complete = [answer for answer in answers if answer.ok]
    failed = [answer for answer in answers if answer.error is not None]
    seconds = sum(block.seconds for block in measurement.blocks[arm])
    tokens = sum(answer.tokens or 0 for answer in complete)
    good = sum(within_targets(answer, measurement.settings) for answer in answers)
    pairs = [] if arm == base else _pairs(measurement.answers(base), answers)
    return ServedFigures(
        arm=arm,
        requests=len(answers),
        completed=len(complete),
        errors=dict(Counter(str(answer.error) for answer in failed)),
        examples={str(answer.error): answer.message for answer in reversed(failed)},
        seconds=seconds,
        requests_per_second=len(complete) / seconds,
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in complete),
        output_tokens=tokens,
        output_tokens_per_second=tokens / seconds,
        ttft_ms=Spread.of(answer.first_seconds for answer in complete),
        itl_ms=Spread.of(gap for answer in complete for gap in answer.gaps),
        tpot_ms=Spread.of(answer.seconds_per_token for answer in complete),
        latency_ms=Spread.of(answer.end - answer.due for answer in complete),
        goodput=good / seconds,
        within_targets=good / len(answers),
        acceptance=ServedAcceptance.of([answer.spec for answer in complete if answer.spec is not None]),
        lag_ms=1e3 * max(answer.sent - answer.due for answer in answers),
        against=_speedup(pairs, measurement.settings.seed),
        compared=len(pairs),
        same_text=sum(ours.text == theirs.text for theirs, ours in pairs),
    )


def _pairs(base: Sequence[Answer], answers: Sequence[Answer]) -> list[tuple[Answer, Answer]]:
    """(base, here) of every request that both answered."""
    known = {answer.place: answer for answer in base if answer.ok}
    return [(known[answer.place], answer) for answer in answers if answer.ok and answer.place in known]


def _speedup(pairs: Sequence[tuple[Answer, Answer]], seed: int) -> Bound | None:
    times = [(theirs.seconds_per_token, ours.seconds_per_token) for theirs, ours in pairs]
    return speedup([[(a, b)] for a, b in times if a and b], seed=seed)
