"""Log-probability records as callers see them: token id -> logprob, rank and text. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling.logprobs import TokenLogprobs
from .detokenize import TokenDecoder
from .outputs import Logprob, LogprobEntry


def present_logprobs(records: Sequence[TokenLogprobs], decoder: TokenDecoder | None) -> tuple[LogprobEntry, ...]:
    """One entry per token: the likeliest ids in order, and the token itself wherever it ranks."""
    return tuple(_entry(record, decoder) for record in records)


def present_prompt(
    records: Sequence[TokenLogprobs | None] | None, decoder: TokenDecoder | None
) -> tuple[LogprobEntry | None, ...] | None:
    """The same for a prompt, whose first token nothing predicts."""
    if records is None:
        return None
    return tuple(None if record is None else _entry(record, decoder) for record in records)


def _entry(record: TokenLogprobs, decoder: TokenDecoder | None) -> LogprobEntry:
    entry = {
        token: Logprob(value, rank, _text(token, decoder))
        for rank, (token, value) in enumerate(zip(record.top_ids, record.top_logprobs, strict=True), 1)
    }
    entry.setdefault(record.token_id, Logprob(record.logprob, record.rank, _text(record.token_id, decoder)))
    return entry


def _text(token: int, decoder: TokenDecoder | None) -> str | None:
    return None if decoder is None else decoder.text_of(token)
