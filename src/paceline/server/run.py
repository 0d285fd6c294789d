"""Listens: an app on a port until it is told to stop, with the drain that running requests get then."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from ..core.errors import ConfigError
from .app import create_app
from .logs import configure_logging
from .settings import ServerSettings
from .state import Loader, ServerState

_LOG = logging.getLogger("paceline.server")
#: Seconds that callers have to take the news that their request was ended.
_TELLING = 5


class Listener(uvicorn.Server):
    """A server whose health fails, and which takes no new requests, from the moment it is told to stop. Running ones
    may go on for ``drain_timeout`` seconds; what is left then is ended, and its callers are told."""

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,  # longer than the pools of usual proxies keep a connection
            timeout_graceful_shutdown=math.ceil(settings.drain_timeout) + _TELLING,
        )
        super().__init__(config)
        self._state: ServerState = app.state.server
        self._state.on_failure = self._give_up

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stop()
        late = asyncio.create_task(self._end_late())
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    async def _end_late(self) -> None:
        await asyncio.sleep(self._state.settings.drain_timeout)
        await self._state.end_engine()

    def _give_up(self) -> None:
        self.should_exit = True


def serve(load: Loader, settings: ServerSettings) -> None:
    """Listen and load; returns after a signal to stop. Raises what loading raised, and :class:`ConfigError` for an
    address that cannot be had, before the model loads."""
    app = create_app(load, settings)
    state: ServerState = app.state.server
    listener, bound = Listener(app, settings), bind(settings)
    configure_logging(settings.log_format)
    host, port = bound.getsockname()[:2]
    _LOG.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    signal.signal(signal.SIGTERM, lambda *_: None)  # what is behind the listener's own handler, which raises it again
    with suppress(KeyboardInterrupt):
        listener.run([bound])
    if state.failure is not None:
        raise state.failure


def bind(settings: ServerSettings) -> socket.socket:
    """A socket at the address that the settings name."""
    host, port = settings.host, settings.port
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)  # from here on callers wait instead of being turned away
    except OSError as error:
        bound.close()
        raise ConfigError("port", f"{host}:{port} cannot be listened on: {error}") from error
    return bound
