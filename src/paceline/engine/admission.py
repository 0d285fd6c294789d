"""The door: every request is checked and completed here, once, before it may touch the engine (spec 18.6)."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..core.errors import RequestError
from ..core.request import AbortSignal, Family, Request, SamplingParams
from ..grammar.fields import request_grammar
from .options import OptionResolver


@dataclass
class Door:
    """Limits of one engine. ``pool_tokens``: the longest sequence the whole KV pool can hold."""

    vocab_size: int
    max_model_len: int
    pool_tokens: int
    eos_ids: tuple[int, ...]
    depth: int
    options: OptionResolver
    seed: int | None = None
    _random: random.Random | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._random = None if self.seed is None else random.Random(self.seed)

    def admit_samples(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, count: int, arrival: float
    ) -> list[Request]:
        """``count`` samples of one prompt. Sample j draws with seed + j (modulo 2**64); one sample is no family."""
        first = self.admit(request_id, prompt_ids, params, arrival)
        if count == 1:
            return [first]
        return [
            replace(
                first,
                id=request_id if place == 0 else f"{request_id}/{place}",
                seed=(first.seed + place) % 2**64,
                abort=AbortSignal(),
                family=Family(request_id, place, count),
            )
            for place in range(count)
        ]

    def admit(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, arrival: float) -> Request:
        """The resolved request, or :class:`RequestError` naming the field and the limit."""
        prompt = self._prompt(prompt_ids)
        stop_ids = tuple(params.stop_token_ids)
        for token in stop_ids:
            if token >= self.vocab_size:
                raise RequestError("stop_token_ids", f"{token} is not an id of the vocabulary ({self.vocab_size} ids)")
        eos_ids = () if params.ignore_eos else self.eos_ids
        ends = tuple(dict.fromkeys((*stop_ids, *eos_ids)))
        cap = self.depth if params.num_draft_tokens is None else min(self.depth, params.num_draft_tokens)
        return Request(
            id=request_id,
            prompt_ids=prompt,
            params=params,
            max_tokens=self._max_tokens(len(prompt), params.max_tokens),
            eos_ids=ends,
            seed=self._seed(params.seed),
            draft_cap=cap if params.speculative else 0,
            abort=AbortSignal(),
            processors=self.options.settings(params, ends),
            xtc_spared=self.options.spared(params, self.eos_ids),
            grammar=request_grammar(structured_outputs=params.structured_outputs),
            prediction=self.options.prediction(params, self.max_model_len),
            fill=params.fill and params.speculative,
            arrival=arrival,
        )

    def _prompt(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        prompt = tuple(prompt_ids)
        if not prompt:
            raise RequestError("prompt", "holds no tokens; give at least one")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise RequestError("prompt", f"{token!r} is not an id of the vocabulary (0 to {self.vocab_size - 1})")
        if len(prompt) >= self.max_model_len:
            raise RequestError(
                "prompt",
                f"has {len(prompt)} tokens, which leaves no room for output within max_model_len {self.max_model_len}",
            )
        if len(prompt) >= self.pool_tokens:
            raise RequestError(
                "prompt",
                f"has {len(prompt)} tokens, which leaves no room for output in a KV pool of {self.pool_tokens} tokens "
                "(kv_cache_tokens)",
            )
        return prompt

    def _max_tokens(self, prompt_tokens: int, wanted: int | None) -> int:
        limit, name = min((self.max_model_len, "max_model_len"), (self.pool_tokens, "kv_cache_tokens"))
        room = limit - prompt_tokens
        if wanted is None:
            return room
        if wanted > room:
            raise RequestError(
                "max_tokens",
                f"{wanted} does not fit: the prompt has {prompt_tokens} tokens and {name} is {limit}; "
                f"ask for at most {room}",
            )
        return wanted

    def _seed(self, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        return secrets.randbits(64) if self._random is None else self._random.getrandbits(64)
