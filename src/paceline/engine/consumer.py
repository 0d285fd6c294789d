"""Receivers of one request's tokens: text and stop strings, then one result, or deltas as they come.

They run on the engine thread and hand over plain records. They know nothing of rounds or rows beyond ``core.ports``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.request import SamplingParams
from ..core.round import Burst
from ..core.row import Finished, FinishReason, Row
from ..core.stats import SpecStats
from ..sampling.logprobs import TokenLogprobs
from .detokenize import TokenDecoder
from .logprob_view import present_logprobs, present_prompt
from .outputs import CompletionOutput, RequestMetrics, RequestOutput, SpeculativeMetrics, StreamDelta, TextPiece
from .stopping import StopStrings


@dataclass(frozen=True)
class Submission:
    """One request as its caller gave it. ``decoder`` is ``None`` where ids only are used; ``spec_tokens``: the engine's
    largest depth; ``index``: which sample of the prompt this is; ``markers``: special tokens that show as text, and
    how; ``namespace``: as in :class:`~paceline.core.request.Request`."""

    request_id: str
    prompt: str | None
    prompt_ids: Sequence[int]
    params: SamplingParams
    decoder: TokenDecoder | None
    spec_tokens: int
    index: int = 0
    markers: Mapping[int, str] = field(default_factory=dict)
    namespace: str | None = None


class ResultConsumer:
    """Collects a request and calls ``done`` with its result, once."""

    def __init__(self, submission: Submission, done: Callable[[RequestOutput], None]) -> None:
        self._submission = submission
        self._done = done
        self._detokenizer = None if submission.decoder is None else submission.decoder.start(submission.markers)
        params = submission.params
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._records: list[TokenLogprobs] = []
        self._arrival = time.monotonic()
        self._first_token: float | None = None

    def take(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        """See ``core.ports.Consumer``: stops after the token that completes a stop string."""
        if self._first_token is None:
            self._first_token = time.monotonic()
        taken = 0
        pieces: list[str] = []
        try:
            for token in tokens:
                if self._detokenizer is not None:
                    pieces.append(self._read(self._detokenizer.push(token), len(self._tokens) + taken + 1))
                taken += 1
                if self._stops.matched is not None:
                    row.stopped = taken == len(tokens)
                    break
            self._tokens.extend(tokens[:taken])
            records = [] if metadata is None else list(metadata[:taken])
            self._records.extend(records)
            self._show(pieces, tokens[:taken], records, row.burst)
        except Exception as error:
            error.taken = taken  # type: ignore[attr-defined]
            raise
        return taken

    def finish(self, row: Row | None, finished: Finished) -> None:
        """Release what was held back and hand over the result."""
        tail = ""
        try:
            tail = self._tail()
        except Exception as error:  # whoever waits must hear of the end in any case
            finished = replace(finished, reason="error", error=finished.error or error)
        self._pieces.append(tail)
        self._deliver(tail, self._result(row, finished))

    def _read(self, text: str, count: int) -> str:
        """Text of the ``count``-th token, through the stop strings once ``min_tokens`` have been generated."""
        return text if count < self._submission.params.min_tokens else self._stops.feed(text)

    def _show(
        self, pieces: Sequence[str], tokens: Sequence[int], records: Sequence[TokenLogprobs], burst: Burst | None
    ) -> None:
        """A burst was taken: its text may be shown now, one piece per token."""
        self._pieces.extend(pieces)

    def _deliver(self, tail: str, output: RequestOutput) -> None:
        self._done(output)

    def _tail(self) -> str:
        """Text still held: half a character, or the beginning of a stop string that never completed."""
        if self._stops.matched is not None or self._detokenizer is None:
            return ""
        text = self._stops.feed(self._detokenizer.flush())
        return text + self._stops.flush()

    def _result(self, row: Row | None, finished: Finished) -> RequestOutput:
        reason, stop_reason = self._reasons(finished)
        submission = self._submission
        logprobs = None
        if submission.params.logprobs is not None:
            logprobs = present_logprobs(self._records, submission.decoder)
        choice = CompletionOutput(
            submission.index, "".join(self._pieces), tuple(self._tokens), reason, stop_reason, logprobs
        )
        return RequestOutput(
            request_id=submission.request_id,
            prompt=submission.prompt,
            prompt_token_ids=tuple(submission.prompt_ids),
            outputs=(choice,),
            metrics=self._metrics(row),
            seed=None if row is None else row.request.seed,
            prompt_logprobs=None if row is None else present_prompt(row.prompt_logprobs, submission.decoder),
            error=finished.error,
        )

    def _reasons(self, finished: Finished) -> tuple[FinishReason, int | str | None]:
        if self._stops.matched is not None and finished.reason in ("stop", "length"):
            return "stop", self._stops.matched
        if finished.end_id is not None and finished.end_id in self._submission.params.stop_token_ids:
            return finished.reason, finished.end_id
        return finished.reason, None

    def _metrics(self, row: Row | None) -> RequestMetrics:
        first = self._first_token
        return RequestMetrics(
            prompt_tokens=len(self._submission.prompt_ids),
            completion_tokens=0 if row is None else row.generated,
            cached_tokens=0 if row is None else row.cached_tokens,
            time_to_first_token=None if first is None else first - self._arrival,
            total_time=time.monotonic() - self._arrival,
            speculative_decoding=SpeculativeMetrics.of(
                SpecStats() if row is None else row.spec, self._submission.spec_tokens
            ),
            accepted_prediction_tokens=0 if row is None else row.fill.accepted_prediction_tokens,
            rejected_prediction_tokens=0 if row is None else row.fill.rejected_prediction_tokens,
        )


class StreamConsumer(ResultConsumer):
    """Calls ``emit`` with each delta as it comes; the last one carries the result."""

    def __init__(self, submission: Submission, emit: Callable[[StreamDelta], None]) -> None:
        super().__init__(submission, lambda output: None)
        self._emit = emit
        self._last = TextPiece("", "plain")

    def _show(
        self, pieces: Sequence[str], tokens: Sequence[int], records: Sequence[TokenLogprobs], burst: Burst | None
    ) -> None:
        super()._show(pieces, tokens, records, burst)
        submission = self._submission
        logprobs = None
        if submission.params.logprobs is not None:
            logprobs = present_logprobs(records, submission.decoder)
        behind = burst or Burst(0, 0, "plain")
        shown = tuple(TextPiece(piece, behind.origin(place)) for place, piece in enumerate(pieces))
        self._last = shown[-1] if shown else self._last
        self._emit(StreamDelta("".join(pieces), tuple(tokens), None, submission.index, logprobs, shown))

    def _deliver(self, tail: str, output: RequestOutput) -> None:
        rest = (replace(self._last, text=tail),) if tail else ()
        self._emit(StreamDelta(tail, (), output, index=self._submission.index, pieces=rest))
