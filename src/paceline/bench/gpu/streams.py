"""Streams of tokens from an engine on the clock: how long a token of each takes while all of them decode.

It knows requests and bursts only: nothing of drafters or devices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import PacelineError
from ...core.request import SamplingParams
from ...core.row import Finished, Row
from ...core.stats import EngineStats
from ...engine.engine import Engine

_WAIT_SECONDS = 120.0


class StreamClock:
    """A consumer that notes when how many tokens came. ``tokens``: the ids themselves."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.finished: Finished | None = None
        self._ended = threading.Event()

    def take(self, row: Row, tokens: Sequence[int], metadata: Sequence[Any] | None) -> int:
        self.times.append(time.perf_counter())
        self.counts.append(len(tokens))
        self.tokens.extend(tokens)
        return len(tokens)

    def finish(self, row: Row | None, finished: Finished) -> None:
        self.finished = finished
        self._ended.set()

    def wait(self) -> None:
        """Until the request has ended. Raises the error it ended with."""
        if not self._ended.wait(_WAIT_SECONDS):
            raise PacelineError(f"a stream gave no token for {_WAIT_SECONDS:.0f} seconds")
        if self.finished is not None and self.finished.error is not None:
            raise self.finished.error


@dataclass(frozen=True)
class StreamFigures:
    """Of ``rows`` streams while all of them decoded. ``ms_per_token``: of one stream; ``round_ms``: of one round.

    ``acceptance_length``: tokens per round and stream in that time (1 = plain); ``depth``: mean proposals per row.
    """

    rows: int
    tokens: int
    seconds: float
    rounds: int
    ms_per_token: float
    round_ms: float
    acceptance_length: float
    depth: float

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together."""
        return self.tokens / self.seconds

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def run_streams(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[StreamClock]:
    """Decode all prompts together; returns when all have ended."""
    clocks = [StreamClock() for _ in prompts]
    for prompt, clock in zip(prompts, clocks, strict=True):
        engine.add_request(prompt, params, clock)
    for clock in clocks:
        clock.wait()
    return clocks


def measure_streams(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> StreamFigures:
    """Run the streams and keep the time in which all of them decode: from the last first token to the first last
    one."""
    before = engine.stats()
    clocks = run_streams(engine, prompts, params)
    return steady_figures(clocks, before, engine.stats())


def steady_figures(clocks: Sequence[StreamClock], before: EngineStats, after: EngineStats) -> StreamFigures:
    """Figures of finished streams. ``before``, ``after``: the engine's counts around them."""
    begin = max(clock.times[0] for clock in clocks)
    end = min(clock.times[-1] for clock in clocks)
    bursts = [count for clock in clocks for at, count in _between(clock, begin, end)]
    if not bursts:
        raise PacelineError("the streams did not decode together for a single round; ask for more tokens")
    tokens, rows = sum(bursts), len(clocks)
    rounds = max(1, round(len(bursts) / rows))
    drafted = after.num_draft_tokens - before.num_draft_tokens
    decoding = sum(len(clock.counts) - 1 for clock in clocks)  # the first burst is the prefill's
    return StreamFigures(
        rows=rows,
        tokens=tokens,
        seconds=end - begin,
        rounds=rounds,
        ms_per_token=(end - begin) * 1e3 * rows / tokens,
        round_ms=(end - begin) * 1e3 / rounds,
        acceptance_length=tokens / len(bursts),
        depth=drafted / max(1, decoding),
    )


def _between(clock: StreamClock, begin: float, end: float) -> list[tuple[float, int]]:
    """Bursts after ``begin`` up to ``end``."""
    return [(at, count) for at, count in zip(clock.times, clock.counts, strict=True) if begin < at <= end]
