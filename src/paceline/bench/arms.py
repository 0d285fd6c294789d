"""What is measured: one way of decoding a prompt greedily, and the figures of one run. Tokens are counted by their ids.

An arm is an engine of paceline or somebody else's decoder; whoever compares them needs to know no more than this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.errors import RequestError
from ..core.request import SamplingParams
from ..core.stats import EngineStats
from ..engine.frontend import Prompt
from ..engine.llm import LLM
from ..engine.outputs import RequestOutput, SpeculativeMetrics

PLAIN = "none"


@dataclass(frozen=True)
class Run:
    """One decoded prompt.

    ``token_ids``: content tokens. ``count``: all generated tokens, an ending EOS included. ``seconds``: wall time of
    the whole call. ``first_seconds``: until the first burst, which held ``first_count`` tokens.
    """

    token_ids: tuple[int, ...]
    count: int
    seconds: float
    first_seconds: float
    first_count: int = 1
    spec: SpeculativeMetrics | None = None

    @property
    def decode_seconds_per_token(self) -> float:
        """Seconds per token behind the first burst; the run must have some."""
        return (self.seconds - self.first_seconds) / (self.count - self.first_count)

    @property
    def seconds_per_token(self) -> float:
        """Seconds per token of the whole call, prefill included."""
        return self.seconds / self.count


class Arm(Protocol):
    """One way of decoding. ``own``: it is paceline, so its tokens must be those of plain decoding."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def own(self) -> bool: ...

    def run(self, ids: tuple[int, ...], tokens: int, ignore_eos: bool) -> Run:
        """Decode at most ``tokens`` tokens, exactly that many with ``ignore_eos`` or if the arm is not ours."""
        ...

    def facts(self) -> dict[str, Any]:
        """Settings in use, as plain JSON."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineSpec:
    """How an engine arm is built. ``method``: a drafter kind or ``none``; ``settings``: further engine settings."""

    model: str
    dtype: str
    method: str
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{'plain' if self.method == PLAIN else self.method} {self.dtype}"


class EngineArm:
    """Decoding by an engine of its own."""

    own = True

    def __init__(self, spec: EngineSpec, llm: LLM | None = None) -> None:
        """``llm``: a ready facade instead of one built from ``spec``."""
        self.spec = spec
        self.name = spec.name
        self.dtype = spec.dtype
        self.plain = spec.method == PLAIN
        self._llm = llm or LLM(spec.model, dtype=spec.dtype, spec_method=spec.method, **spec.settings)

    def run(self, ids: tuple[int, ...], tokens: int, ignore_eos: bool) -> Run:
        return self.run_together([ids], tokens, ignore_eos)[0]

    def run_together(self, prompts: Sequence[tuple[int, ...]], tokens: int, ignore_eos: bool) -> list[Run]:
        """Decode several prompts in one batch. ``seconds`` of every run is the time until all have ended."""
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=ignore_eos)
        ready = [Prompt(None, ids) for ids in prompts]
        start = time.perf_counter()
        outputs = self._llm.generate(ready, params)
        seconds = time.perf_counter() - start
        return [_run_of(output, seconds) for output in outputs]

    def stats(self) -> EngineStats:
        """What the engine has counted so far."""
        return self._llm.stats()

    def facts(self) -> dict[str, Any]:
        info = self._llm.info()
        names = ("dtype", "device", "exactness", "drafter", "spec_tokens", "num_threads", "max_num_seqs")
        return {"name": self.name, "own": True, **{name: info.get(name) for name in names}}

    def close(self) -> None:
        self._llm.close()


def _run_of(output: RequestOutput, seconds: float) -> Run:
    if output.error is not None:
        raise output.error
    metrics = output.metrics
    first = metrics.time_to_first_token
    return Run(
        token_ids=output.token_ids,
        count=metrics.completion_tokens,
        seconds=seconds,
        first_seconds=seconds if first is None else first,
        spec=metrics.speculative_decoding,
    )


def encode_prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    """One user message as ids: through the chat template if the model has one, else as it is."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = tokenizer.encode(text)
    if not ids:
        raise RequestError("prompts", f"{text!r:.40} holds no token")
    return tuple(int(token) for token in ids)
