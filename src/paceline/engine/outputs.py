"""What a caller gets back: text, ids, reasons and figures of one request. Plain records; they hold no engine state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, TypeAlias

from ..core.params import SamplingParams
from ..core.round import Origin
from ..core.row import FinishReason
from ..core.stats import SpecStats


@dataclass(frozen=True)
class SpeculativeMetrics:
    """What speculation did for one request; tuples by position are as long as the deepest proposal.

    A draft round is a round in which the request had drafter proposals. Mean acceptance length = 1 + accepted / draft
    rounds (the bonus token included, 1.0 without draft rounds); draft acceptance rate = accepted / drafted.
    ``acceptance_histogram[i]``: draft rounds that accepted exactly i proposals, ``num_spec_tokens + 1`` entries.
    ``forwards``: target forwards after the prefill; ``tokens_per_forward``: delivered tokens / forwards;
    ``forwards_saved``: forwards that plain decoding would have needed on top. ``time_saved_ms``: what those would have
    taken, less what verify windows and drafts cost more than plain rounds, estimated by the measured costs of the
    machine (negative: speculation lost); ``None`` where costs were not measured. ``phase_ms``: milliseconds of draft,
    verify, sample and commit over ``rounds``, where phases are timed.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    forwards: int
    forwards_saved: int
    tokens_per_forward: float
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    time_saved_ms: float | None = None
    phase_ms: dict[str, float] | None = None

    @classmethod
    def of(cls, spec: SpecStats, num_spec_tokens: int) -> SpeculativeMetrics:
        """``num_spec_tokens``: the engine's largest depth."""
        histogram = [0] * (max(num_spec_tokens, *spec.acceptance_lengths, 0) + 1)
        for accepted in spec.acceptance_lengths:
            histogram[accepted] += 1
        return cls(
            mean_acceptance_length=1.0 + spec.accepted / spec.rounds if spec.rounds else 1.0,
            draft_acceptance_rate=spec.accepted / spec.drafted if spec.drafted else 0.0,
            acceptance_histogram=tuple(histogram),
            num_spec_steps=spec.rounds,
            num_accepted_draft_tokens=spec.accepted,
            num_draft_tokens=spec.drafted,
            num_spec_tokens=num_spec_tokens,
            forwards=spec.forwards,
            forwards_saved=spec.forwards_saved,
            tokens_per_forward=spec.tokens_per_forward,
            drafted_by_position=tuple(spec.drafted_by_pos),
            accepted_by_position=tuple(spec.accepted_by_pos)
            + (0,) * (len(spec.drafted_by_pos) - len(spec.accepted_by_pos)),
            time_saved_ms=spec.time_saved_ms,
            phase_ms=None if spec.phase_ms is None else dict(spec.phase_ms),
        )

    @classmethod
    def merged(cls, parts: Sequence[SpeculativeMetrics]) -> SpeculativeMetrics:
        """The figures of several samples together."""
        rounds = sum(part.num_spec_steps for part in parts)
        accepted = sum(part.num_accepted_draft_tokens for part in parts)
        drafted = sum(part.num_draft_tokens for part in parts)
        forwards = sum(part.forwards for part in parts)
        tokens = sum(part.tokens_per_forward * part.forwards for part in parts)
        return cls(
            mean_acceptance_length=1.0 + accepted / rounds if rounds else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=_added([part.acceptance_histogram for part in parts]),
            num_spec_steps=rounds,
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=max(part.num_spec_tokens for part in parts),
            forwards=forwards,
            forwards_saved=sum(part.forwards_saved for part in parts),
            tokens_per_forward=tokens / forwards if forwards else 0.0,
            drafted_by_position=_added([part.drafted_by_position for part in parts]),
            accepted_by_position=_added([part.accepted_by_position for part in parts]),
            time_saved_ms=_known_sum([part.time_saved_ms for part in parts]),
            phase_ms=_merged_phases([part.phase_ms for part in parts]),
        )

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Accepted at position i / drafted at position i."""
        return tuple(a / d for a, d in zip(self.accepted_by_position, self.drafted_by_position, strict=True))


@dataclass(frozen=True)
class RequestMetrics:
    """Token counts and times (seconds) of one request.

    ``completion_tokens`` counts an ending EOS, which is not part of ``token_ids``. ``time_to_first_token``: from
    arrival to the first delivered token, ``None`` if there was none. ``total_time``: from arrival to the end.
    ``accepted_prediction_tokens``: output tokens that followed the prediction, ``rejected_prediction_tokens``:
    tokens of it that were verified in vain.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    time_to_first_token: float | None
    total_time: float
    speculative_decoding: SpeculativeMetrics
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @classmethod
    def merged(cls, parts: Sequence[RequestMetrics]) -> RequestMetrics:
        """Samples of one prompt: output tokens added up, times from the arrival to the first and to the last."""
        firsts = [part.time_to_first_token for part in parts if part.time_to_first_token is not None]
        return cls(
            prompt_tokens=parts[0].prompt_tokens,
            completion_tokens=sum(part.completion_tokens for part in parts),
            cached_tokens=parts[0].cached_tokens,
            time_to_first_token=min(firsts, default=None),
            total_time=max(part.total_time for part in parts),
            speculative_decoding=SpeculativeMetrics.merged([part.speculative_decoding for part in parts]),
            accepted_prediction_tokens=sum(part.accepted_prediction_tokens for part in parts),
            rejected_prediction_tokens=sum(part.rejected_prediction_tokens for part in parts),
        )

    @property
    def time_per_output_token(self) -> float | None:
        """TPOT = (end - first token) / (tokens - 1); ``None`` for fewer than two tokens."""
        if self.time_to_first_token is None or self.completion_tokens < 2:
            return None
        return (self.total_time - self.time_to_first_token) / (self.completion_tokens - 1)

    @property
    def tokens_per_second(self) -> float:
        """Delivered tokens per second between the first token and the end (0 for fewer than two)."""
        per_token = self.time_per_output_token
        return 1.0 / per_token if per_token else 0.0


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability, its ``rank`` (1 = the likeliest) and its text (``None`` without a
    tokenizer)."""

    logprob: float
    rank: int
    decoded_token: str | None = None


#: Log-probabilities at one position, by token id.
LogprobEntry: TypeAlias = dict[int, Logprob]


@dataclass(frozen=True)
class CompletionOutput:
    """One choice. ``stop_reason``: the stop string or stop token id that ended it, ``None`` for any other end.

    ``logprobs[i]``: token id -> :class:`Logprob` for the i-th of ``token_ids``: the token itself and the likeliest ones
    asked for; ``None`` if ``SamplingParams.logprobs`` is.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    logprobs: tuple[LogprobEntry, ...] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the tokens of their log-probabilities, if they were asked for."""
        if self.logprobs is None:
            return None
        return sum(entry[token].logprob for entry, token in zip(self.logprobs, self.token_ids, strict=True))

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token, by which ``best_of`` ranks; a failed or empty answer ranks last."""
        if self.finish_reason not in ("stop", "length") or not self.token_ids:
            return -math.inf
        total = self.cumulative_logprob
        return -math.inf if total is None else total / len(self.token_ids)


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request; ``text``, ``token_ids`` and so on are shortcuts to ``outputs[0]``.

    ``prompt``: the text, ``None`` if ids were given. ``seed``: the seed in use, ``None`` if the request never started.
    ``error``: why it ended, for finish reasons ``"error"`` and ``"abort"``.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    seed: int | None = None
    prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
    error: BaseException | None = field(default=None, compare=False)

    @classmethod
    def of_samples(cls, parts: Sequence[RequestOutput], params: SamplingParams) -> RequestOutput:
        """What a caller who asked by ``params`` gets of all samples drawn: those kept, likeliest first with
        ``best_of``; the metrics count all of them."""
        if params.best_of is None:
            return parts[0] if len(parts) == 1 else cls.merged(parts)
        whole = cls.merged(parts)
        ranked = sorted(whole.outputs, key=lambda choice: choice.mean_logprob, reverse=True)[: params.n]
        kept = [replace(choice, index=place) for place, choice in enumerate(ranked)]
        if params.logprobs is None:
            kept = [replace(choice, logprobs=None) for choice in kept]
        return replace(whole, outputs=tuple(kept))

    @classmethod
    def merged(cls, parts: Sequence[RequestOutput]) -> RequestOutput:
        """Samples of one prompt as one result with a choice each; the first error, if any, is its error."""
        choices = tuple(replace(part.outputs[0], index=place) for place, part in enumerate(parts))
        return replace(
            parts[0],
            outputs=choices,
            metrics=RequestMetrics.merged([part.metrics for part in parts]),
            error=next((part.error for part in parts if part.error is not None), None),
        )

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        return self.outputs[0].logprobs

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        times = {
            "time_per_output_token": self.metrics.time_per_output_token,
            "tokens_per_second": self.metrics.tokens_per_second,
        }
        return {
            "request_id": self.request_id,
            "prompt": self.prompt,
            "prompt_token_ids": list(self.prompt_token_ids),
            "outputs": [_choice(choice) for choice in self.outputs],
            "metrics": asdict(self.metrics) | times,
            "seed": self.seed,
            "prompt_logprobs": None if self.prompt_logprobs is None else [_plain(e) for e in self.prompt_logprobs],
            "error": None if self.error is None else str(self.error),
        }


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that one token brought, and where that token comes from."""

    text: str
    origin: Origin


@dataclass(frozen=True)
class StreamDelta:
    """A piece of a stream: new ``text`` (may be empty while a stop string could still complete) and new ``token_ids``.

    The last delta of a sample carries ``output``, its whole result; joined, the texts are ``output.text``. ``index``:
    which sample of the prompt it belongs to; ``logprobs``: one entry per id of ``token_ids``, if asked for. ``pieces``:
    ``text`` by the tokens that brought it (text that was held back comes with a later token).
    """

    text: str
    token_ids: Sequence[int]
    output: RequestOutput | None = None
    index: int = 0
    logprobs: tuple[LogprobEntry, ...] | None = None
    pieces: tuple[TextPiece, ...] = field(default=(), compare=False)

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.output is None else self.output.finish_reason


def _added(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Sum by position; missing positions count as 0."""
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))


def _known_sum(values: Sequence[float | None]) -> float | None:
    """Sum of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _merged_phases(parts: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [part for part in parts if part is not None]
    names = dict.fromkeys(name for part in known for name in part)
    return {name: sum(part.get(name, 0.0) for part in known) for name in names} or None


def _choice(choice: CompletionOutput) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else [_plain(entry) for entry in choice.logprobs]
    return asdict(replace(choice, logprobs=None)) | {"token_ids": list(choice.token_ids), "logprobs": logprobs}


def _plain(entry: LogprobEntry | None) -> dict[str, Any] | None:
    return None if entry is None else {str(token): asdict(value) for token, value in entry.items()}
