"""What the OpenAPI description says of every generating route beside its own schemas."""

from __future__ import annotations

from typing import Any

from .schemas import Answer, ErrorBody

_STATUSES = (400, 401, 404, 413, 429, 500, 503)
ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in _STATUSES}


def stream_content(chunk: type[Answer]) -> dict[str, Any]:
    """The event stream of a route: each ``data`` line is a ``chunk``, the last one is ``[DONE]``."""
    return {"text/event-stream": {"schema": {"type": "string", "description": f"Events of {chunk.__name__} objects."}}}
