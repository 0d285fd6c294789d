"""One streamed completion of any OpenAI endpoint, with the times of its deliveries. Knows HTTP and JSON, no engine.

Tokens are those that the endpoint counts in ``usage``: a delivery may hold several, so deliveries are never counted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..core.errors import ConfigError
from .serve_sse import SseParser

CHAT, COMPLETIONS = "chat", "completions"
APIS = (CHAT, COMPLETIONS)
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. ``url``: scheme, host and port, a trailing ``/v1`` is dropped. ``extra``: fields of the body
    that this endpoint gets on top."""

    url: str
    model: str
    api: str = CHAT
    api_key: str | None = field(default=None, repr=False)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def path(self) -> str:
        return self.root + _PATHS[self.api]

    @property
    def headers(self) -> dict[str, str]:
        found = {"accept": "text/event-stream", "accept-encoding": "identity"}
        return found if self.api_key is None else found | {"authorization": f"Bearer {self.api_key}"}

    def body(self, text: str, options: dict[str, Any]) -> dict[str, Any]:
        """A streamed request with usage for one user message."""
        content = {"messages": [{"role": "user", "content": text}]} if self.api == CHAT else {"prompt": text}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **content, **stream, **options, **self.extra}


@dataclass(frozen=True)
class Ask:
    """One request of a plan. ``place``: its number, the same for every endpoint that is compared."""

    place: int
    text: str
    options: dict[str, Any]


@dataclass
class Answer:
    """What came of one request; times in seconds of the monotonic clock.

    ``due``: when it was to be sent, from which waiting counts. ``deliveries``: when text arrived. ``tokens``: by the
    endpoint's own count. ``spec``: its ``metrics.speculative_decoding``. ``error``: the kind of what went wrong,
    ``message``: what was said. ``left``: we hung up on purpose.
    """

    place: int
    due: float
    sent: float = 0.0
    end: float = 0.0
    deliveries: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    spec: dict[str, Any] | None = None
    error: str | None = None
    message: str = ""
    left: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.left

    @property
    def first_seconds(self) -> float | None:
        """TTFT: from when it was due to the first delivery."""
        return self.deliveries[0] - self.due if self.deliveries else None

    @property
    def gaps(self) -> list[float]:
        """ITL: seconds between deliveries."""
        return [after - before for before, after in pairwise(self.deliveries)]

    @property
    def seconds_per_token(self) -> float | None:
        """TPOT = (last delivery - first) / (tokens - 1); ``None`` for fewer than two tokens."""
        if not self.tokens or self.tokens < 2 or len(self.deliveries) < 2:
            return None
        return (self.deliveries[-1] - self.deliveries[0]) / (self.tokens - 1)


class _Refused(Exception):
    """Kind and message of an answer that failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Client:
    """Sends requests; one connection each, kept for later ones. What fails is recorded, not raised."""

    def __init__(self, http: Any, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    async def ask(
        self, endpoint: Endpoint, ask: Ask, due: float | None = None, leave_after: int | None = None
    ) -> Answer:
        """Stream one answer. ``leave_after``: hang up after so many deliveries."""
        now = time.monotonic()
        answer = Answer(ask.place, due=now if due is None else due, sent=now)
        try:
            async with asyncio.timeout(self._timeout):
                await self._stream(endpoint, endpoint.body(ask.text, ask.options), answer, leave_after)
        except TimeoutError:
            answer.error, answer.message = "timeout", f"no end within {self._timeout:g} s"
        except _Refused as error:
            answer.error, answer.message = error.kind, str(error)
        except _http_library().HTTPError as error:
            answer.error, answer.message = _network_kind(error), f"{type(error).__name__}: {error}"
        answer.end = time.monotonic()
        return answer

    async def get(self, endpoint: Endpoint, path: str) -> Any:
        """JSON of a GET, or its text if it is none; raises :class:`ConfigError` if there is no answer."""
        try:
            response = await self._http.get(endpoint.root + path, headers=endpoint.headers, timeout=self._timeout)
        except _http_library().HTTPError as error:
            raise ConfigError("url", f"{endpoint.root} does not answer: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise ConfigError("url", f"{endpoint.root}{path} answers {response.status_code}: {response.text[:200]}")
        is_json = "json" in response.headers.get("content-type", "")
        return response.json() if is_json else response.text

    async def _stream(self, endpoint: Endpoint, body: dict[str, Any], answer: Answer, leave_after: int | None) -> None:
        async with self._http.stream("POST", endpoint.path, json=body, headers=endpoint.headers) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", errors="replace")
                raise _Refused(f"status {response.status_code}", text[:300])
            parser, done = SseParser(), False
            async for received in response.aiter_raw():
                now = time.monotonic()
                events = parser.feed(received)
                if _read(events, answer):
                    answer.deliveries.append(now)
                if leave_after is not None and len(answer.deliveries) >= leave_after:
                    answer.left = True
                    return
                done = done or "[DONE]" in events
        if not done:
            raise _Refused("cut", "the stream ended without [DONE]")
        if answer.tokens is None:
            raise _Refused("no usage", "the stream held no usage, so its tokens cannot be counted")


@asynccontextmanager
async def open_client(timeout: float, connections: int | None = None) -> AsyncIterator[Client]:
    """A client with at most ``connections`` (``None`` = any number) at a time."""
    library = _http_library()
    limits = library.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with library.AsyncClient(limits=limits, timeout=library.Timeout(timeout), trust_env=False) as http:
        yield Client(http, timeout)


def _read(events: list[str], answer: Answer) -> bool:
    """Take the events of one delivery in; whether any of them brought text."""
    brought = False
    for event in events:
        if event == "[DONE]":
            continue
        try:
            chunk = json.loads(event)
        except ValueError:
            raise _Refused("bad JSON", event[:300]) from None
        if not isinstance(chunk, dict) or chunk.get("error"):
            raise _Refused("error event", event[:300])
        brought |= _read_chunk(chunk, answer)
    return brought


def _read_chunk(chunk: dict[str, Any], answer: Answer) -> bool:
    usage = chunk.get("usage")
    if usage:
        answer.tokens, answer.prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
    spec = (chunk.get("metrics") or {}).get("speculative_decoding")
    if spec:
        answer.spec = spec
    brought = False
    for choice in chunk.get("choices") or ():
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        answer.text += text
        hidden = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
        brought |= bool(text or hidden)
    return brought


def _network_kind(error: Exception) -> str:
    library = _http_library()
    if isinstance(error, library.ConnectError):
        return "no connection"
    return "timeout" if isinstance(error, library.TimeoutException) else "connection lost"


def _http_library() -> Any:
    """The HTTP client that comes with the hub's client, or its earlier name."""
    try:
        import httpx2 as library
    except ImportError:
        try:
            import httpx as library  # type: ignore[no-redef]
        except ImportError as error:
            raise ConfigError("bench serve", "needs an HTTP client (pip install httpx)") from error
    return library
