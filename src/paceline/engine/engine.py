"""The engine: one synchronous loop on its own thread. Requests come in from any thread as plain records."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.config import EngineConfig
from ..core.errors import EngineClosed, RequestError
from ..core.ports import Consumer
from ..core.request import Request, SamplingParams
from ..core.row import Finished
from ..core.stats import EngineStats
from ..grammar.compiler import GrammarCompiler
from ..grammar.matcher import Grammar
from .admission import Door
from .scheduler import Scheduler

if TYPE_CHECKING:
    from ..draft.base import DraftProvider
    from ..models.artifact import Progress

_LOG = logging.getLogger("paceline.engine")


class Engine:
    """Serves requests until :meth:`close`. All methods may be called from any thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        door: Door,
        stats: EngineStats,
        *,
        info: dict[str, Any],
        tokenizer: Any = None,
        compiler: GrammarCompiler | None = None,
    ) -> None:
        self._compiler = compiler
        self._scheduler = scheduler
        self._door = door
        self._stats = stats
        self._info = info
        self.tokenizer = tokenizer
        self.default_params: dict[str, Any] = {}
        self.config = EngineConfig()
        self._condition = threading.Condition()
        self._inbox: deque[_Arrival] = deque()
        self._stopped = False
        self._live: dict[str, Request] = {}
        self._closing: BaseException | None = None
        self._turn_began: float | None = None
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)
        self._thread.start()

    @classmethod
    def build(
        cls, config: EngineConfig, drafter: DraftProvider | None = None, progress: Progress | None = None
    ) -> Engine:
        """Load what ``config`` names and start. ``drafter``: a ready provider used instead of ``spec_method``."""
        from .build import build_engine

        return build_engine(config, drafter, progress)

    def add_request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        consumer: Consumer,
        request_id: str | None = None,
    ) -> str:
        """Queue a request; returns its id. Its consumer is called on the engine thread.

        Raises :class:`RequestError` if the request can never be served as asked, :class:`EngineClosed` after close.
        """
        return self.add_samples(prompt_ids, params, [consumer], request_id)[0]

    def add_samples(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        consumers: Sequence[Consumer],
        request_id: str | None = None,
        namespace: str | None = None,
    ) -> list[str]:
        """Queue one request per consumer: samples of one prompt that share its prefill and differ in their seed.

        ``namespace``: requests of different ones share nothing that drafters or caches keep. Returns their ids:
        ``request_id``, then ``request_id/1`` ... Raises as :meth:`add_request`.
        """
        name = f"req-{next(self._numbers)}" if request_id is None else request_id
        requests = self._door.admit_samples(name, prompt_ids, params, len(consumers), time.monotonic())
        if namespace is not None:
            requests = [replace(request, namespace=namespace) for request in requests]
        with self._condition:
            if self._closing is not None:
                raise EngineClosed(f"the engine is closed: {self._closing}")
            for request in requests:
                if request.id in self._live:
                    raise RequestError("request_id", f"{request.id!r} is already in use by a live request")
            released = []
            for request, consumer in zip(requests, consumers, strict=True):
                self._live[request.id] = request
                released.append(_Released(consumer, self._live, request.id))
        self._queue(requests, released)
        return [request.id for request in requests]

    def _queue(self, requests: list[Request], consumers: list[_Released]) -> None:
        """Hand requests to the engine thread; those with a grammar once it is compiled, elsewhere."""
        spec = requests[0].grammar
        if spec is None:
            self._post(_Arrival(requests, consumers))
        elif self._compiler is None:
            refusal = RequestError(spec.field, "grammars need a tokenizer, and skip_tokenizer_init is set")
            self._post(_Arrival(requests, consumers, refusal))
        else:
            self._compiler.submit(spec).add_done_callback(partial(self._compiled, requests, consumers))

    def _compiled(self, requests: list[Request], consumers: list[_Released], compiled: Future[Grammar]) -> None:
        """On the compiler's thread: its grammar, or the reason why there is none, travels with the requests."""
        error = compiled.exception()
        spec = requests[0].grammar
        if isinstance(error, RequestError) and spec is not None:  # equal grammars share a future: name our own field
            error = RequestError(spec.field, str(error).removeprefix(f"{error.field}: "))
        if error is None:
            grammar = compiled.result()
            requests = [replace(request, grammar=grammar) for request in requests]
        self._post(_Arrival(requests, consumers, error))

    def _post(self, arrival: _Arrival) -> None:
        with self._condition:
            if not self._stopped:
                self._inbox.append(arrival)
                self._condition.notify()
                return
        for consumer in arrival.consumers:  # the engine thread has gone
            consumer.finish(None, Finished("error", error=EngineClosed("the engine was closed")))

    def abort(self, request_id: str, reason: str = "aborted by the caller") -> bool:
        """Ask that a request ends. Unknown and finished ids are no error; returns whether the id was live."""
        with self._condition:
            request = self._live.get(request_id)
            if request is not None:
                request.abort.abort(reason)
                self._condition.notify()
        return request is not None

    def stats(self) -> EngineStats:
        """A copy of the engine's figures."""
        return self._stats.snapshot()

    def turn_seconds(self) -> float:
        """How long the loop has been at its present turn of work; 0 while there is none to do."""
        began = self._turn_began
        return 0.0 if began is None else time.monotonic() - began

    def add_info(self, **facts: Any) -> None:
        """Add facts that only the builder knows."""
        self._info.update(facts)

    def info(self) -> dict[str, Any]:
        """What runs here: model, dtype, device, exactness, drafter, limits, load, failures."""
        return {
            **self._info,
            "num_requests_running": self._scheduler.num_running,
            "num_requests_waiting": self._scheduler.num_waiting + len(self._inbox),
            "kv_cache_usage": self._scheduler.kv_usage,
            "drafter_failure": self._scheduler.drafter_failure(),
            "closed": self._closing is not None,
        }

    def close(self) -> None:
        """End all requests with :class:`EngineClosed` and stop the thread. Idempotent."""
        self._shut(EngineClosed("the engine was closed"))
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._compiler is not None:
            self._compiler.close()

    def _shut(self, error: BaseException) -> None:
        with self._condition:
            if self._closing is None:
                self._closing = error
            self._condition.notify()

    def _run(self) -> None:
        import torch

        with torch.inference_mode():
            self._loop()

    def _loop(self) -> None:
        try:
            while self._take_inbox():
                self._scheduler.step()
        except BaseException as error:
            _LOG.critical("the engine loop failed: %r", error, exc_info=error)
            self._shut(error)
        with self._condition:
            self._stopped = True
        self._take_inbox()
        self._scheduler.close(self._closing or EngineClosed("the engine was closed"))

    def _take_inbox(self) -> bool:
        """Wait for work and hand new requests to the scheduler; false when the engine is closing."""
        self._turn_began = None
        with self._condition:
            while not (self._inbox or self._scheduler.has_work or self._closing is not None):
                self._condition.wait()
            self._turn_began = time.monotonic()
            while self._inbox:
                arrival = self._inbox.popleft()
                if arrival.error is not None:
                    self._scheduler.refuse(arrival.requests, arrival.consumers, arrival.error)
                else:
                    self._scheduler.submit(arrival.requests, arrival.consumers)
            return self._closing is None


@dataclass(frozen=True)
class _Arrival:
    """Requests on their way to the engine thread: samples of one prompt, or ``error`` why they cannot be served."""

    requests: list[Request]
    consumers: list[_Released]
    error: BaseException | None = None


class _Released:
    """A consumer whose request id becomes free again when the request ends."""

    def __init__(self, consumer: Consumer, live: dict[str, Request], name: str) -> None:
        self._consumer = consumer
        self._live = live
        self._name = name
        self.take = consumer.take

    def finish(self, row: Any, finished: Any) -> None:
        self._live.pop(self._name, None)
        self._consumer.finish(row, finished)
