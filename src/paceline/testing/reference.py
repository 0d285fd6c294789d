"""Plain decoding, one token at a time, on the ``transformers`` model in float64: what every stream is compared with.

No paceline graph, cache, sampler or engine is used here, and no key-value cache at all: each step runs the whole text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.request import Request, SamplingParams
from .models import quiet_transformers
from .noise import draw_token

#: Options that the plain loop follows, or that may not change a token.
_FOLLOWED = frozenset(
    {"max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos"}
    | {"num_draft_tokens", "speculative", "prediction", "fill", "logprobs", "prompt_logprobs", "logprobs_mode"}
)

NextLogits = Callable[[Sequence[int]], NDArray[np.float64]]


@dataclass(frozen=True)
class PlainRun:
    """What plain decoding gives for one request.

    ``tokens`` are delivered; ``draws`` also hold a terminal EOS; ``generated`` counts the tokens plus a terminal EOS
    (spec 9.4). ``lead`` is the smallest margin by which a draw won: equality of streams means little below ~1e-9.
    """

    tokens: tuple[int, ...]
    draws: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    generated: int
    lead: float

    def stopped_after(self, count: int) -> PlainRun:
        """The same run with a consumer that stops after ``count`` >= 1 tokens (no effect if there are fewer)."""
        if count > len(self.tokens):
            return self
        cut = self.tokens[:count]
        return replace(self, tokens=cut, draws=cut, finish_reason="stop", generated=count)


def plain_loop(
    next_logits: NextLogits, prompt: Sequence[int], params: SamplingParams, eos_ids: Sequence[int], max_model_len: int
) -> PlainRun:
    """Decode one request. ``next_logits`` maps the text so far to the logits [V] of its next token.

    ``eos_ids`` are the model's; ``params`` adds its stop ids and may ignore them. Sampled runs need ``params.seed``.
    """
    _refuse_unknown(params)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_ids))
    room = max_model_len - len(prompt)
    budget = room if params.max_tokens is None else params.max_tokens
    if not 1 <= budget <= room:
        raise ValueError(f"{budget} tokens after a prompt of {len(prompt)} do not fit in {max_model_len}")
    tokens: list[int] = []
    lead = float("inf")
    for step in range(budget):
        token, margin = draw_token(next_logits([*prompt, *tokens]), params, params.seed or 0, step)
        lead = min(lead, margin)
        if token in ends:
            return PlainRun(tuple(tokens), (*tokens, token), "stop", len(tokens) + 1, lead)
        tokens.append(token)
    return PlainRun(tuple(tokens), tuple(tokens), "length", budget, lead)


def _refuse_unknown(params: SamplingParams) -> None:
    """Refuse options that this loop does not follow, rather than run as if they were not there."""
    plain = SamplingParams()
    others = [
        f.name for f in fields(params) if f.name not in _FOLLOWED and getattr(params, f.name) != getattr(plain, f.name)
    ]
    if others:
        raise ValueError(f"the plain loop does not know {', '.join(others)}")
    if not params.greedy and params.seed is None:
        raise ValueError("a sampled reference run needs a seed")


class PlainDecoder:
    """Plain decoding with one model; remembers its runs. ``next_logits``: see :func:`plain_loop`."""

    def __init__(self, next_logits: NextLogits, eos_ids: Sequence[int], max_model_len: int, vocab_size: int) -> None:
        self.next_logits = next_logits
        self.eos_ids = tuple(eos_ids)
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._runs: dict[tuple[tuple[int, ...], SamplingParams], PlainRun] = {}

    def run(self, prompt: Sequence[int], params: SamplingParams) -> PlainRun:
        """Plain decoding of one request; equal requests are computed once."""
        key = (tuple(prompt), params)
        if key not in self._runs:
            self._runs[key] = plain_loop(self.next_logits, prompt, params, self.eos_ids, self.max_model_len)
        return self._runs[key]

    def recorded(self, request: Request) -> tuple[int, ...]:
        """The draws that plain decoding makes for a request of the engine: what an oracle drafter replays."""
        params = request.params if request.params.greedy else replace(request.params, seed=request.seed)
        return self.run(request.prompt_ids, params).draws


@functools.cache
def reference(path: Path, max_model_len: int | None = None) -> PlainDecoder:
    """Plain decoding with the ``transformers`` model of an artifact directory, in float64 and without any cache."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    model = loaded.eval()
    eos = GenerationConfig.from_pretrained(path).eos_token_id

    def next_logits(tokens: Sequence[int]) -> NDArray[np.float64]:
        with torch.no_grad():
            output = model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
        return np.asarray(output.logits[0, -1].numpy(), dtype=np.float64)

    limit = model.config.max_position_embeddings if max_model_len is None else max_model_len
    return PlainDecoder(next_logits, eos if isinstance(eos, list) else [eos], limit, model.config.vocab_size)
