"""The last minutes of the server: figures of the engine once a second in a bounded ring, and rates between two of them.

Metrics and the dashboard read it; it knows neither.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.round import Origin
from ..core.stats import EngineStats
from ..engine.outputs import StreamDelta
from .observe import Observer, Watched
from .state import ServerState

INTERVAL = 1.0
#: Samples kept: ten minutes.
CAPACITY = 600
ORIGINS: tuple[Origin, ...] = ("drafted", "copied", "corrected", "bonus", "plain")


class OriginCounter(Observer):
    """Counts delivered tokens by where they come from."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(ORIGINS, 0))

    def on_token(self, request: Watched, delta: StreamDelta, gap: float | None) -> None:
        for piece in delta.pieces:
            self.counts[piece.origin] += 1


@dataclass(frozen=True)
class Sample:
    """The server at one moment. ``at``: ``time.monotonic()``; ``kv_usage``: share of KV blocks in use, ``None`` if the
    engine does not say; ``stats`` and ``origins`` count since the start."""

    at: float
    running: int
    waiting: int
    kv_usage: float | None
    stats: EngineStats
    origins: Mapping[str, int]


@dataclass(frozen=True)
class Change:
    """What happened between two samples. Rates are per second; shares and means are ``None`` where nothing was drafted.

    ``accept_length``: 1 + accepted / draft rounds; ``depth``: mean proposals per row and round, rounds without any
    counted as 0. ``rounds``: rounds of rows by the source of their proposals; ``origins``: tokens by origin.
    """

    seconds: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    accept_length: float | None
    depth: float | None
    rounds: dict[str, int] = field(default_factory=dict)
    origins: dict[str, int] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)

    @classmethod
    def between(cls, old: Sample, new: Sample) -> Change:
        before, after = old.stats, new.stats
        seconds = max(new.at - old.at, 1e-9)
        drafts = after.num_drafts - before.num_drafts
        drafted = after.num_draft_tokens - before.num_draft_tokens
        accepted = after.num_accepted_tokens - before.num_accepted_tokens
        depths = _less(after.depth_histogram, before.depth_histogram)
        rows = sum(depths.values())
        return cls(
            seconds=seconds,
            tokens_per_second=(after.generation_tokens - before.generation_tokens) / seconds,
            prompt_tokens_per_second=(after.prompt_tokens - before.prompt_tokens) / seconds,
            drafted=drafted,
            accepted=accepted,
            acceptance_rate=accepted / drafted if drafted else None,
            accept_length=1.0 + accepted / drafts if drafts else None,
            depth=sum(depth * count for depth, count in depths.items()) / rows if rows else None,
            rounds={
                "drafter": drafts,
                "span": after.span_rounds - before.span_rounds,
                "plain": after.plain_rounds - before.plain_rounds,
            },
            origins={name: new.origins.get(name, 0) - old.origins.get(name, 0) for name in ORIGINS},
            depths=depths,
            drafted_by_position=_places(after.draft_tokens_by_pos, before.draft_tokens_by_pos),
            accepted_by_position=_places(after.accepted_tokens_by_pos, before.accepted_tokens_by_pos),
        )


class History:
    """A ring of samples. ``now`` looks at the server itself, so that a reader never sees an old second."""

    def __init__(self, state: ServerState, capacity: int = CAPACITY) -> None:
        self._state = state
        self._samples: deque[Sample] = deque(maxlen=capacity)
        self._origins = OriginCounter()
        state.observers.append(self._origins)

    @property
    def origins(self) -> dict[str, int]:
        """Tokens delivered since the start, by origin."""
        return dict(self._origins.counts)

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    def now(self) -> Sample | None:
        """The server at this moment; ``None`` while the model is not loaded."""
        stats, info = self._state.stats(), self._state.info()
        if stats is None:
            return None
        usage = info.get("kv_cache_usage")
        return Sample(
            at=time.monotonic(),
            running=int(info["num_requests_running"]),
            waiting=int(info["num_requests_waiting"]),
            kv_usage=None if usage is None else float(usage),
            stats=stats,
            origins=self.origins,
        )

    def record(self) -> None:
        """Add the present moment."""
        sample = self.now()
        if sample is not None:
            self._samples.append(sample)

    def change(self, seconds: float) -> Change | None:
        """What happened in about the last ``seconds``; ``None`` before there are two moments to compare."""
        now = self.now()
        if now is None or not self._samples:
            return None
        inside = (sample for sample in self._samples if now.at - sample.at <= seconds)
        return Change.between(next(inside, self._samples[-1]), now)

    async def run(self) -> None:
        """Record once a second until cancelled."""
        while True:
            self.record()
            await asyncio.sleep(INTERVAL)


def _less(after: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    changed = {key: count - before.get(key, 0) for key, count in sorted(after.items())}
    return {key: count for key, count in changed.items() if count}


def _places(after: list[int], before: list[int]) -> list[int]:
    return [count - (before[place] if place < len(before) else 0) for place, count in enumerate(after)]
