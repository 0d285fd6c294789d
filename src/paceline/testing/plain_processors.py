"""Penalties, bans and forced tokens over lists, straight from their formulas: everything computed anew for each token.

Shares only the settings record with ``paceline.sampling.processors``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget

NEGATIVE = -math.inf


def plain_process(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], s: ProcessorSettings
) -> list[float]:
    """Logits for the token after ``prompt + output``, everything computed anew."""
    x, text = list(logits), [*prompt, *output]
    for token, value in s.logit_bias.items():
        x[token] += value
    for token in plain_bans(text, len(output), s):
        x[token] = NEGATIVE
    forced = s.forced_tokens.get(len(output))
    if forced is None and s.thinking is not None:
        forced = plain_thinking(text, s.thinking)
    if forced is not None:
        x = [0.0 if token == forced else NEGATIVE for token in range(len(x))]
    seen = text[-s.penalty_window :] if s.penalty_window else text
    generated = output[-s.penalty_window :] if s.penalty_window else list(output)
    for token in range(len(x)):
        if token in seen:
            r = s.repetition_penalty
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        if token in generated:
            x[token] -= s.frequency_penalty * generated.count(token) + s.presence_penalty
    if s.dry is not None:
        for token, amount in plain_dry(text, s.dry).items():
            x[token] -= amount
    return x


def plain_bans(text: list[int], generated: int, s: ProcessorSettings) -> set[int]:
    """Ids banned after ``text``, of which ``generated`` tokens are output."""
    banned = {word[-1] for word in s.bad_words if len(word) == 1 or text[-(len(word) - 1) :] == list(word[:-1])}
    n = s.no_repeat_ngram_size
    if n:
        ngrams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
        start = tuple(text[len(text) - n + 1 :]) if len(text) >= n - 1 else None
        banned |= {gram[-1] for gram in ngrams if gram[:-1] == start}
    return banned | (set(s.stop_ids) if generated < s.min_tokens else set())


def plain_thinking(text: list[int], budget: ThinkingBudget) -> int | None:
    """Read the text from its beginning; no automaton: compare its end with the markers after every token."""
    inside: list[int] | None = None
    since: list[int] = []
    for token in text:
        if inside is None:
            since.append(token)
            if since[-len(budget.start_ids) :] == list(budget.start_ids):
                inside = []
        else:
            inside.append(token)
            if inside[-len(budget.end_ids) :] == list(budget.end_ids):
                inside, since = None, []
    if inside is None or len(inside) < budget.budget:
        return None
    done = [
        k for k in range(len(budget.end_ids)) if k <= len(inside) and inside[len(inside) - k :] == [*budget.end_ids[:k]]
    ]
    return budget.end_ids[max(done)]


def plain_dry(text: list[int], dry: DrySettings) -> dict[int, float]:
    """Compare the end of the text with every earlier place, token by token."""
    part = text if dry.penalty_last_n < 0 else text[max(0, len(text) - dry.penalty_last_n) :]
    longest: dict[int, int] = {}
    for end in range(len(part) - 1):
        size = 0
        while size <= end and part[end - size] == part[-1 - size] and part[-1 - size] not in dry.breakers:
            size += 1
        follower = part[end + 1]
        if size >= dry.allowed_length and follower not in dry.breakers:
            longest[follower] = max(size, longest.get(follower, 0))
    return {token: dry.multiplier * dry.base ** (size - dry.allowed_length) for token, size in longest.items()}
