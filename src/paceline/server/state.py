"""The state of one server: its engine while it loads, runs, drains and ends, who counts, and how much is under way."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from ..core.stats import EngineStats
from ..engine.async_llm import AsyncLLM
from .errors import ApiError, bad_field
from .observe import Observer
from .profile import ChatProfile, read_template
from .security import Keys
from .settings import ServerSettings

_LOG = logging.getLogger("paceline.server")

Phase = Literal["loading", "ready", "failed", "stopping"]
#: Loads the engine; called on a thread of its own.
Loader = Callable[[], AsyncLLM]
#: Runs beside the requests from start to end.
Background = Callable[[], Coroutine[Any, Any, None]]


class ServerState:
    """One per app, as ``app.state.server``. Methods are for the event loop.

    ``observers`` may be added to until the first request. ``background``: what runs beside the requests from start to
    end. ``on_failure`` is called when loading failed.
    """

    def __init__(self, source: AsyncLLM | Loader, settings: ServerSettings) -> None:
        self.settings = settings
        self.keys = Keys(settings.api_key)
        self.phase: Phase = "loading"
        self.failure: BaseException | None = None
        self.observers: list[Observer] = []
        self.background: list[Background] = []
        self.on_failure: Callable[[], None] | None = None
        self.started = time.monotonic()
        self.created = int(time.time())
        self.in_flight = 0
        self._failing: set[tuple[Observer, str]] = set()
        self._seconds_per_request = 1.0
        self._llm: AsyncLLM | None = None
        self._loader: Loader | None = None
        self._profile: ChatProfile | None = None
        self._template = read_template(settings.chat_template)
        #: Encodes prompts one after another, beside the loop: a long one delays no stream.
        self.encoder = ThreadPoolExecutor(1, thread_name_prefix="paceline-encode")
        if isinstance(source, AsyncLLM):
            self._ready(source)
        else:
            self._loader = source

    # -- engine ------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> AsyncLLM:
        """The running engine; :class:`ApiError` 503 while there is none."""
        if self.phase == "stopping":
            raise ApiError(503, "The server is stopping.", code="stopping", headers={"Retry-After": "10"})
        if self._llm is None:
            what = "The model is loading." if self.phase == "loading" else "The model could not be loaded."
            raise ApiError(503, what, code=self.phase, headers={"Retry-After": "5"})
        return self._llm

    @property
    def loaded(self) -> AsyncLLM | None:
        """The engine if there is one, whatever it is doing."""
        return self._llm

    def stats(self) -> EngineStats | None:
        """Figures of the engine since it started, ``None`` before."""
        return None if self._llm is None else self._llm.stats()

    def info(self) -> dict[str, Any]:
        """What runs (empty while loading)."""
        return {} if self._llm is None else self._llm.info()

    @property
    def chat(self) -> ChatProfile:
        """How this model's conversations are written and read."""
        if self._profile is None:
            self._profile = ChatProfile.of(self.engine.tokenizer, self._template, self.settings)
        return self._profile

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use for the model; the first is the one reported."""
        return self.settings.served_model_name or (str(self.engine.info()["model"]),)

    async def load(self) -> None:
        """Load on a thread that nobody has to wait for at exit."""
        if self._loader is None:
            return
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[AsyncLLM] = loop.create_future()
        threading.Thread(target=self._load, args=(loop, loaded), name="paceline-load", daemon=True).start()
        try:
            self._ready(await loaded)
        except Exception as error:
            self.phase, self.failure = "failed", error
            _LOG.error("the model could not be loaded: %s", error)
            if self.on_failure is not None:
                self.on_failure()

    def _load(self, loop: asyncio.AbstractEventLoop, loaded: asyncio.Future[AsyncLLM]) -> None:
        assert self._loader is not None
        try:
            llm = self._loader()
        except Exception as error:
            _settle(loop, loaded, error)
        else:
            if not _settle(loop, loaded, llm):
                llm.close()

    def _ready(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.phase = "ready"

    def stop(self) -> None:
        """New requests are refused from now on."""
        self.phase = "stopping"

    async def close(self) -> None:
        """End the engine. Idempotent."""
        self.stop()
        self.encoder.shutdown(wait=False, cancel_futures=True)
        await self.end_engine()

    async def end_engine(self) -> None:
        """End the engine alone: requests that still run fail and say so. Idempotent."""
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)

    # -- load --------------------------------------------------------------------------------------------------------

    def enter(self, samples: int, field: str = "n") -> None:
        """Count requests in; 429 if too many are under way, 400 under ``field`` if they alone would be too many."""
        limit = int(self.engine.info()["max_num_seqs"]) + self.settings.max_queue
        if samples > limit:
            raise bad_field(field, f"{samples} answers are asked for, at most {limit} may be under way")
        if self.in_flight + samples > limit:
            wait = str(self._retry_after())
            message = f"{self.in_flight} requests are under way, at most {limit} may be; try again in {wait} s."
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": wait})
        self.in_flight += samples

    def leave(self, samples: int, seconds: float | None = None) -> None:
        """Count them out; ``seconds``: how long they took, if they ran to their end."""
        self.in_flight -= samples
        if seconds is not None:
            self._seconds_per_request += 0.1 * (seconds - self._seconds_per_request)

    def _retry_after(self) -> int:
        """Seconds until about a quarter of what is under way will have ended."""
        rows = int(self.engine.info()["max_num_seqs"])
        return min(60, max(1, round(self._seconds_per_request * self.in_flight / rows / 4)))

    # -- health ------------------------------------------------------------------------------------------------------

    def health(self) -> tuple[bool, str]:
        """Whether requests can be served now, and a word for it."""
        if self.phase != "ready" or self._llm is None:
            return False, self.phase
        if self._llm.info().get("closed"):
            return False, "engine failed"
        if self._llm.engine.turn_seconds() > self.settings.stuck_timeout:
            return False, "stuck"
        return True, "ok"

    def tell(self, event: str, *facts: Any) -> None:
        """Call a method of every observer. What one raises is logged, the first time, and does no harm."""
        for observer in self.observers:
            try:
                getattr(observer, event)(*facts)
            except Exception:
                if (observer, event) not in self._failing:
                    self._failing.add((observer, event))
                    _LOG.exception("an observer failed at %s", event)


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[AsyncLLM], result: AsyncLLM | Exception) -> bool:
    """Complete a future from another thread; false if nobody waits any more."""

    def settle() -> None:
        if future.done():
            if isinstance(result, AsyncLLM):
                result.close()
        elif isinstance(result, AsyncLLM):
            future.set_result(result)
        else:
            future.set_exception(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has closed
        return False
    return True
