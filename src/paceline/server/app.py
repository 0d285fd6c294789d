"""The app: routes, the life of the engine behind them, errors in OpenAI's shape. Listening is the caller's affair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from .. import __version__
from ..core.errors import PacelineError
from ..engine.async_llm import AsyncLLM
from . import admin, chat, completions, extensions, responses, tokens
from .errors import ApiError
from .logs import report_speculation
from .middleware import Entrance
from .settings import ServerSettings
from .state import Background, Loader, ServerState
from .validation import of_validation
from .wire import Disconnected, Document, error_response, told

_CLIENT_CLOSED = 499


def create_app(source: AsyncLLM | Loader, settings: ServerSettings | None = None) -> FastAPI:
    """The app over a running engine, or over one that ``source()`` loads once the app has started (until then every
    route that needs it answers 503). The app closes the engine when it ends. Its state is ``app.state.server``."""
    state = ServerState(source, settings or ServerSettings())
    app = FastAPI(title="paceline", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.server = state
    for router in (chat.router, completions.router, responses.router, tokens.router, admin.router):
        app.include_router(router)
    extensions.install(app, state)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(PacelineError, _api_error)
    app.add_exception_handler(Disconnected, _gone)
    app.add_middleware(Entrance, state=state)
    if state.settings.allowed_origins:
        origins = list(state.settings.allowed_origins)
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    work: list[Background] = [state.load, partial(report_speculation, state), *state.background]
    tasks = [asyncio.create_task(each()) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await state.close()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _refuse(request, of_validation(error.errors()))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ApiError):  # raised while the body was read
        return _refuse(request, error.__cause__)
    texts = {404: f"There is no {request.url.path!r:.200} here.", 405: f"{request.method} is not allowed here."}
    status = 400 if error.status_code == 422 else error.status_code
    if status == 400:  # the body could not be read; all other refusals have errors of their own
        unread = "The body cannot be read: JSON in UTF-8 is taken, uncompressed, with nesting and numbers in reason."
        return _refuse(request, ApiError(400, unread, code="invalid_json"))
    return _refuse(request, ApiError(status, texts.get(status, str(error.detail)), headers=error.headers))


async def _api_error(request: Request, error: Exception) -> Response:
    return _refuse(request, told(error))


async def _gone(request: Request, error: Exception) -> Response:
    return Document(None, _CLIENT_CLOSED)


def _refuse(request: Request, error: ApiError) -> Response:
    state: ServerState = request.app.state.server
    state.tell("on_refusal", request.url.path, error.status, error.code)
    return error_response(error)
