"""Log-probabilities in the two shapes that OpenAI's routes have, and in vLLM's for prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..engine.detokenize import Detokenizer, TokenDecoder
from ..engine.outputs import Logprob, LogprobEntry

#: What clients get for the logarithm of zero, which JSON cannot hold.
IMPOSSIBLE = -9999.0


def finite(value: float) -> float:
    return value if math.isfinite(value) else IMPOSSIBLE


def chat_entries(
    tokens: Sequence[int], entries: Sequence[LogprobEntry], top: int, decoder: TokenDecoder | None
) -> list[dict[str, Any]]:
    """``logprobs.content`` of chat completions: one record per token, with the ``top`` likeliest."""
    return [_chat_entry(token, entry, top, decoder) for token, entry in zip(tokens, entries, strict=True)]


def _chat_entry(token: int, entry: LogprobEntry, top: int, decoder: TokenDecoder | None) -> dict[str, Any]:
    likeliest = sorted(entry.items(), key=lambda item: item[1].rank)[:top]
    shown = _chat_score(token, entry[token], decoder)
    return shown | {"top_logprobs": [_chat_score(other, score, decoder) for other, score in likeliest]}


def _chat_score(token: int, score: Logprob, decoder: TokenDecoder | None) -> dict[str, Any]:
    content = None if decoder is None else decoder.token_bytes(token)
    return {
        "token": _name(token, score),
        "logprob": finite(score.logprob),
        "bytes": None if content is None else list(content),
    }


def _name(token: int, score: Logprob) -> str:
    return str(token) if score.decoded_token is None else score.decoded_token


class TextScores:
    """``logprobs`` of text completions, token after token: offsets count characters of the text that is certain before
    each token, from ``start`` on."""

    def __init__(self, top: int, detokenizer: Detokenizer | None, start: int = 0) -> None:
        self._top = top
        self._detokenizer = detokenizer
        self._offset = start

    def record(self, tokens: Sequence[int], entries: Sequence[LogprobEntry | None]) -> dict[str, Any]:
        """The part of these tokens; an entry is ``None`` where nothing predicts a token."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, entry in zip(tokens, entries, strict=True):
            text = "" if self._detokenizer is None else self._detokenizer.push(token)
            found["text_offset"].append(self._offset)
            found["tokens"].append(_name(token, entry[token]) if entry else text)
            found["token_logprobs"].append(finite(entry[token].logprob) if entry else None)
            found["top_logprobs"].append(self._likeliest(entry) if entry else None)
            self._offset += len(text)
        return found

    def _likeliest(self, entry: LogprobEntry) -> dict[str, float]:
        """Of tokens that read alike the likeliest."""
        found: dict[str, float] = {}
        for token, score in sorted(entry.items(), key=lambda item: item[1].rank)[: self._top]:
            found.setdefault(_name(token, score), finite(score.logprob))
        return found


def prompt_entries(entries: Sequence[LogprobEntry | None] | None) -> list[dict[str, Any] | None] | None:
    """``prompt_logprobs`` as vLLM sends them."""
    if entries is None:
        return None
    return [None if entry is None else _prompt_entry(entry) for entry in entries]


def _prompt_entry(entry: LogprobEntry) -> dict[str, Any]:
    return {str(token): _prompt_score(score) for token, score in entry.items()}


def _prompt_score(score: Logprob) -> dict[str, Any]:
    return {"logprob": finite(score.logprob), "rank": score.rank, "decoded_token": score.decoded_token}
