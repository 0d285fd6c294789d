"""What every call passes on its way in: an id, the key check, the body limit. Plain ASGI, no copies of bodies."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .security import OPEN_PATHS
from .state import ServerState
from .wire import error_response, told

_ACCESS = logging.getLogger("paceline.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
#: Asked for every few seconds by machines: their answers are logged only where debugging is on.
_POLLED = frozenset({"/health", "/metrics", "/dashboard/data.json"})
_UNAUTHORIZED = {"WWW-Authenticate": "Bearer"}


class Entrance:
    """Wraps the app. ``scope["state"]`` gets ``request_id``, ``arrival`` and ``api_key`` (``None`` if none is needed).

    ``open_paths``: paths beside the usual ones that need no key.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._server = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # whoever listens leaves the body out
            scope = {**scope, "method": "GET"}
        headers = Headers(scope=scope)
        given = headers.get("x-request-id")
        known = given if given is not None and _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        answer = _Answer(send, known)
        try:
            if given not in (None, known):
                raise ApiError(400, "X-Request-Id: must match [A-Za-z0-9._:-]{1,128}", param="X-Request-Id")
            facts = {"request_id": known, "arrival": time.monotonic(), "api_key": self._key(scope, headers)}
            scope["state"] = {**scope.get("state", {}), **facts}
            body = _Bounded(receive, headers, self._server.settings.max_body_bytes)
            await self._app(scope, body, answer)
        except ApiError as error:
            self._server.tell("on_refusal", scope["path"], error.status, error.code)
            if answer.started:
                raise
            await error_response(error)(scope, receive, answer)
        except Exception as error:
            refusal = told(error)
            self._server.tell("on_refusal", scope["path"], refusal.status, refusal.code)
            if answer.started:
                raise
            await error_response(refusal)(scope, receive, answer)
        finally:
            _ACCESS.log(
                logging.DEBUG if scope["path"] in _POLLED and answer.status == 200 else logging.INFO,
                "%s %s %s",
                method,
                scope["path"],
                answer.status,
                extra={"request_id": known, "status": answer.status, "seconds": answer.seconds},
            )

    def _key(self, scope: Scope, headers: Headers) -> str | None:
        keys = self._server.keys
        path: str = scope["path"]
        if not keys.required or path in OPEN_PATHS or path.startswith("/dashboard/") or scope["method"] == "OPTIONS":
            return None
        key = keys.check(headers.get("authorization"))
        if key is None:
            message = "No API key was given." if "authorization" not in headers else "The API key is not one of ours."
            raise ApiError(401, message, code="invalid_api_key", headers=_UNAUTHORIZED)
        return key


class _Answer:
    """A ``send`` that adds the request's id and notes the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._id = request_id
        self._began = time.monotonic()
        self.status = 0

    @property
    def started(self) -> bool:
        return self.status != 0

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._began, 4)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self._id
        await self._send(message)


class _Bounded:
    """A ``receive`` that refuses bodies beyond ``limit`` bytes, declared or not."""

    def __init__(self, receive: Receive, headers: Headers, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._read = 0
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise self._too_large()

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._limit:
                raise self._too_large()
        return message

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is larger than {self._limit} bytes.", code="body_too_large")
