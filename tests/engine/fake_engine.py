"""An engine that recites: every request gets the same answer, in bursts, from a thread. Delivery follows spec 9.2."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.config import EngineConfig
from paceline.core.errors import Cancelled, EngineClosed, RequestError
from paceline.core.ports import Consumer
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Finished, Row
from paceline.core.stats import EngineStats


def make_row(prompt_ids: Sequence[int], params: SamplingParams, name: str = "r") -> Row:
    most = 10_000 if params.max_tokens is None else params.max_tokens
    request = Request(name, tuple(prompt_ids), params, most, (), 7 if params.seed is None else params.seed, 0)
    return Row(request, index=0, tokens=list(prompt_ids))


def recite(row: Row, consumer: Consumer, answer: Sequence[int], bursts: Sequence[int], eos: int | None = None) -> None:
    """Deliver ``answer`` (ended by ``eos`` if given) in bursts of the given sizes, then single tokens."""
    sizes = list(bursts)
    rest = list(answer)
    while True:
        if row.request.abort.aborted:
            return consumer.finish(row, Finished("abort", error=Cancelled(row.request.abort.reason or "")))
        if not rest:
            row.generated += 1
            return consumer.finish(row, Finished("stop", end_id=eos))
        size = min(sizes.pop(0) if sizes else 1, row.remaining, len(rest))
        burst, rest = rest[:size], rest[size:]
        try:
            taken = consumer.take(row, burst, None)
        except Exception as error:
            row.generated += getattr(error, "taken", 0)
            return consumer.finish(row, Finished("error", error=error))
        row.generated += taken
        if taken < size or row.stopped:
            return consumer.finish(row, Finished("stop"))
        if row.remaining <= 0:
            return consumer.finish(row, Finished("length"))


@dataclass
class FakeEngine:
    """See the module. ``hold``: requests wait until it is set, or until they are aborted. ``refuse``: prompt ids that
    are refused at the door."""

    answer: Sequence[int]
    tokenizer: Any = None
    bursts: Sequence[int] = ()
    eos: int | None = 2
    hold: threading.Event | None = None
    refuse: Sequence[int] = ()
    default_params: dict[str, Any] = field(default_factory=dict)
    config: EngineConfig = field(default_factory=EngineConfig)
    closed: bool = False
    seen: list[Request] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def add_request(
        self, prompt_ids: Sequence[int], params: SamplingParams, consumer: Consumer, request_id: str | None = None
    ) -> str:
        if self.closed:
            raise EngineClosed("the engine was closed")
        if tuple(prompt_ids) == tuple(self.refuse):
            raise RequestError("prompt", "is too long")
        row = make_row(prompt_ids, params, request_id or "r")
        self.seen.append(row.request)
        thread = threading.Thread(target=self._serve, args=(row, consumer), daemon=True)
        self.threads.append(thread)
        thread.start()
        return row.request.id

    def add_samples(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        consumers: Sequence[Consumer],
        request_id: str | None = None,
    ) -> list[str]:
        return [
            self.add_request(prompt_ids, params, consumer, f"{request_id or 'r'}/{place}")
            for place, consumer in enumerate(consumers)
        ]

    def _serve(self, row: Row, consumer: Consumer) -> None:
        while self.hold is not None and not self.hold.wait(0.005) and not row.request.abort.aborted and not self.closed:
            pass
        if self.closed:
            consumer.finish(None, Finished("error", error=EngineClosed("the engine was closed")))
        else:
            recite(row, consumer, self.answer, self.bursts, self.eos)

    def abort(self, request_id: str, reason: str = "aborted") -> bool:
        for request in self.seen:
            if request.id == request_id:
                request.abort.abort(reason)
        return True

    def stats(self) -> EngineStats:
        return EngineStats()

    def info(self) -> dict[str, Any]:
        names = {"model": "fake", "dtype": "none", "device": "cpu", "exactness": "bitwise", "drafter": "none"}
        return names | {"spec_tokens": 4, "max_num_seqs": 8, "max_model_len": 64, "kv_cache_tokens": 48}

    def turn_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True
        for thread in self.threads:
            thread.join()
