"""The rounds of a row whose text is known, without a model: how many a prediction saves, and what proposing costs.

A round is what the engine would run: the pending token and the span's ids, of which the first right ones count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.params import SamplingParams
from ..core.request import Request
from ..core.round import RowResult
from ..core.row import Row
from ..core.stats import FillStats
from ..engine.spans import RowSpans
from ..fill.source import Prediction


@dataclass(frozen=True)
class Replay:
    """``forwards`` for the tokens behind the first; ``seconds``: CPU time that spans took in each of these rounds,
    bookkeeping included; ``index_seconds``: building the prediction's index, once per request, not on the engine's
    thread."""

    tokens: int
    forwards: int
    seconds: tuple[float, ...]
    index_seconds: float
    fill: FillStats

    @property
    def tokens_per_forward(self) -> float:
        return (self.tokens - 1) / self.forwards

    @property
    def mean_microseconds(self) -> float:
        return 1e6 * sum(self.seconds) / len(self.seconds)

    @property
    def worst_microseconds(self) -> float:
        return 1e6 * max(self.seconds)


def replay(prediction: Sequence[int], text: Sequence[int], fill_span: int = 32) -> Replay:
    """Decode ``text`` (two ids or more) with the prediction; the row is alone in its engine."""
    start = time.thread_time()
    source = Prediction(prediction)
    index_seconds = time.thread_time() - start
    request = Request("replay", (0,), SamplingParams(), len(text), (), 0, 0, prediction=source)
    row = Row(request, index=0, tokens=[0])
    spans = RowSpans(fill_span)
    spans.open_row(row, accepts=True)
    _deliver(spans, row, RowResult((), tuple(text[:1]), 0))
    seconds = []
    while row.remaining:
        start = time.thread_time()
        ids = tuple(spans.proposals(row, 0, alone=True)) if spans.started(row) else ()
        asked = time.thread_time() - start
        result = _verify(ids, text[row.generated : row.generated + len(ids) + 1])
        start = time.thread_time()
        _deliver(spans, row, result)
        seconds.append(asked + time.thread_time() - start)
    spans.close_row(row)
    return Replay(len(text), len(seconds), tuple(seconds), index_seconds, row.fill)


def _verify(ids: tuple[int, ...], draws: Sequence[int]) -> RowResult:
    """The round of a target that draws ``draws`` whatever is proposed."""
    right = 0
    while right < min(len(ids), len(draws)) and ids[right] == draws[right]:
        right += 1
    return RowResult(ids, tuple(draws[: right + 1]), right, source="span" if ids else "plain")


def _deliver(spans: RowSpans, row: Row, result: RowResult) -> None:
    row.generated += len(result.emitted)
    spans.delivered(row, result, len(result.emitted), row.remaining > 0)
