"""Answers on the wire: JSON documents, event streams, and what happens when the caller hangs up. Knows no route."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, of_exception

_LOG = logging.getLogger("paceline.server")
_T = TypeVar("_T")

DONE = b"data: [DONE]\n\n"


def json_bytes(content: Any) -> bytes:
    """Compact JSON in UTF-8. A lone surrogate, which no encoding has, becomes a question mark."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


class Document(JSONResponse):
    """A JSON answer."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def error_response(error: ApiError) -> Document:
    return Document(error.body(), error.status, headers=error.headers)


def data_event(content: Any) -> bytes:
    """A chunk of chat or text completions."""
    return b"data: " + json_bytes(content) + b"\n\n"


def named_event(content: Mapping[str, Any]) -> bytes:
    """An event of the responses API, named by its type."""
    return b"event: " + str(content["type"]).encode() + b"\n" + data_event(content)


class Disconnected(Exception):
    """The caller has gone; nobody reads an answer."""


async def until_gone(request: Request, work: Awaitable[_T]) -> _T:
    """The result of ``work``, which is cancelled when the caller hangs up first (:class:`Disconnected`)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from ``events``. The first one is awaited before the status is sent, so that a refusal has its
    own status; a later failure is told by ``failed`` in an event of its own. When the caller hangs up ``events`` is
    closed at once; while the caller is slow nothing is read from it.
    """

    media_type = "text/event-stream"

    #: Seconds after which a caller that takes nothing counts as gone.
    patience = 300.0

    def __init__(self, events: AsyncIterator[bytes], failed: Callable[[ApiError], bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        watch = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((writing, watch), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            watch.cancel()
            if not writing.done():
                writing.cancel()
                await asyncio.wait((writing,))

    async def _write(self, send: Send) -> None:
        first = await anext(self._events, b"")  # what it raises is answered like that of any other route
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(send, first)
            await self._rest(send)
            await self._send(send, b"", last=True)
        except (OSError, Disconnected):  # the connection broke, or nobody took what was sent
            return
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _rest(self, send: Send) -> None:
        try:
            async for event in self._events:
                await self._send(send, event)
        except (OSError, Disconnected):
            raise
        except Exception as error:
            await self._send(send, self._failed(told(error)))

    async def _send(self, send: Send, body: bytes, last: bool = False) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await send({"type": "http.response.body", "body": body, "more_body": not last})
        except TimeoutError:
            raise Disconnected from None


def told(error: Exception) -> ApiError:
    """What the caller is told; what is our own fault is logged with its cause (never with a prompt)."""
    answer = of_exception(error)
    if answer.status == 500:
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)  # messages of exceptions may hold text of a request
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the engine"
        _LOG.error("a request failed: %s at %s", type(cause).__name__, place)
    return answer
