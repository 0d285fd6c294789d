"""One HTTP call that generates: prompts to the engine, deltas back, everything released however it ends. Knows requests
and streams, not what routes make of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request

from ..core.params import SamplingParams
from ..engine.async_llm import AsyncLLM, OpenRequest
from ..engine.frontend import Prompt, RequestOptions
from ..engine.outputs import RequestOutput, StreamDelta
from .errors import ApiError, model_not_found
from .observe import Watched
from .security import namespace_of
from .state import ServerState
from .translate import Wanted

_T = TypeVar("_T")
MakePrompt = Callable[[], Prompt]


@dataclass
class Call:
    """One call of a generating route. ``id``: that of the answer; ``created``: Unix time."""

    server: ServerState
    llm: AsyncLLM
    route: str
    model: str
    id: str
    namespace: str | None
    arrival: float
    streams: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, request: Request, prefix: str, body: Any) -> Call:
        """From a request and its body. 404 for a model that is not here, 503 without an engine."""
        state: ServerState = request.app.state.server
        llm, names = state.engine, state.names
        if body.model is not None and body.model not in names:
            raise model_not_found(body.model, names)
        return cls(
            server=state,
            llm=llm,
            route=request.url.path,
            model=body.model or names[0],
            id=f"{prefix}{uuid.uuid4().hex}",
            namespace=namespace_of(request.state.api_key, body.cache_salt),
            arrival=request.state.arrival,
            streams=bool(body.stream),
        )

    @property
    def prefix_cache(self) -> bool:
        return bool(self.llm.engine.config.cache.enable_prefix_caching)


async def beside(server: ServerState, work: Callable[[], _T]) -> _T:
    """Run what may take long on the encoder's thread."""
    return await asyncio.get_running_loop().run_in_executor(server.encoder, work)


class Running:
    """The prompts of a call under way."""

    def __init__(self, requests: Sequence[OpenRequest], params: SamplingParams) -> None:
        self.requests = requests
        self.params = params

    @property
    def prompts(self) -> list[Prompt]:
        return [request.prompt for request in self.requests]

    async def deltas(self) -> AsyncIterator[tuple[int, StreamDelta]]:
        """Deltas of all prompts as they come, with the prompt's place. :class:`ApiError` when a sample failed."""
        if len(self.requests) == 1:
            async for delta in self.requests[0].stream:
                yield 0, _sound(delta)
            return
        waiting = {asyncio.ensure_future(each.stream.take()): n for n, each in enumerate(self.requests)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    place = waiting.pop(task)
                    for delta in task.result():
                        yield place, _sound(delta)
                    stream = self.requests[place].stream
                    if not stream.finished:
                        waiting[asyncio.ensure_future(stream.take())] = place
        finally:
            for task in waiting:
                task.cancel()

    async def outputs(self) -> list[RequestOutput]:
        """The whole results, one per prompt."""
        parts: list[dict[int, RequestOutput]] = [{} for _ in self.requests]
        async for place, delta in self.deltas():
            if delta.output is not None:
                parts[place][delta.index] = delta.output
        return [RequestOutput.of_samples([found[n] for n in sorted(found)], self.params) for found in parts]


def _sound(delta: StreamDelta) -> StreamDelta:
    if delta.output is not None and delta.output.error is not None:
        raise delta.output.error
    return delta


@asynccontextmanager
async def running(
    call: Call, prompts: Sequence[MakePrompt], wanted: Wanted, markers: dict[int, str] | None = None
) -> AsyncIterator[Running]:
    """Prompts handed to the engine; whatever has not ended when the block is left is aborted there.

    Raises :class:`ApiError` under the caller's field names for what is refused, 429 when too many wait.
    """
    params = wanted.over(call.llm.engine.default_params)
    count = params.samples * len(prompts)
    call.server.enter(count, "prompt" if params.samples == 1 else "n")
    opened: list[OpenRequest] = []
    seconds: float | None = None
    try:
        for number, make in enumerate(prompts):
            name = call.id if len(prompts) == 1 else f"{call.id}-{number}"
            opened.append(await _open(call, make, wanted, params, RequestOptions(name, call.namespace, markers or {})))
        yield Running(opened, params)
        seconds = time.monotonic() - call.arrival
    except ApiError:
        raise
    except Exception as error:
        raise wanted.told(error) from error
    finally:
        for request in opened:
            request.abort("the caller has gone")
        call.server.leave(count, seconds)


async def _open(
    call: Call, make: MakePrompt, wanted: Wanted, params: SamplingParams, options: RequestOptions
) -> OpenRequest:
    """Encode and submit one prompt beside the loop; if the caller goes meanwhile, it is aborted as soon as it is in."""
    prompt: Prompt = await beside(call.server, make)
    hears = _Listening(call, options.request_id or "", prompt, params)
    mailbox = call.llm.mailbox()
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(
        call.server.encoder, lambda: call.llm.open(mailbox, prompt, params, options, hears.take)
    )
    try:
        opened = await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_abandon)
        raise
    hears.begin()
    return opened


def _abandon(work: asyncio.Future[OpenRequest]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().abort("the caller has gone")


class _Listening:
    """Tells the observers of one prompt, each delivery when it happens."""

    def __init__(self, call: Call, name: str, prompt: Prompt, params: SamplingParams) -> None:
        self._tell = call.server.tell
        self._began = False
        self._watched = Watched(
            id=name,
            route=call.route,
            model=call.model,
            prompt_tokens=len(prompt.ids),
            samples=params.samples,
            streams=call.streams,
            arrival=call.arrival,
        )

    def begin(self) -> None:
        if not self._began:
            self._began = True
            self._tell("on_request_start", self._watched)

    def take(self, delta: StreamDelta) -> None:
        self.begin()
        now, watched = time.monotonic(), self._watched
        if delta.token_ids:
            if watched.first_token is None:
                watched.first_token = now
                self._tell("on_first_token", watched, now - watched.arrival)
            last = watched.last_token.get(delta.index)
            watched.last_token[delta.index] = now
            self._tell("on_token", watched, delta, None if last is None else now - last)
        if delta.output is not None:
            self._tell("on_finish", watched, delta.output, now - watched.arrival)
