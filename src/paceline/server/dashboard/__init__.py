"""The dashboard: one page at ``/`` without outside parts, and the figures it draws at ``/dashboard/data.json``."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib import resources
from re import DOTALL, findall

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response

from ..errors import ApiError
from ..history import History
from ..state import ServerState
from ..wire import Document
from .figures import document

LONGEST = 600.0


def install(app: FastAPI, state: ServerState, history: History) -> None:
    """Mount the page, which needs no key, and its data, which needs one if the server has any."""
    page = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    headers = {"Content-Security-Policy": policy(page), "Cache-Control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return HTMLResponse(page, headers=headers)

    @app.get("/dashboard/data.json", include_in_schema=False)
    async def data(request: Request) -> Response:
        keys = state.keys
        if keys.required and keys.check(request.headers.get("authorization")) is None:
            raise ApiError(401, "The dashboard needs an API key.", code="invalid_api_key")
        return Document(document(state, history, _seconds(request)), headers={"Cache-Control": "no-store"})


def policy(page: str) -> str:
    """A content security policy that lets the page's own script and style run, and nothing else anywhere."""
    script, style = (_sources(page, tag) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _sources(page: str, tag: str) -> str:
    digests = [hashlib.sha256(text.encode()).digest() for text in findall(rf"<{tag}>(.*?)</{tag}>", page, DOTALL)]
    return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)


def _seconds(request: Request) -> float:
    """How far back the caller wants to see."""
    try:
        wanted = float(request.query_params.get("seconds", "120"))
    except ValueError:
        wanted = 0.0
    if not 1.0 <= wanted <= LONGEST:
        raise ApiError(400, f"seconds: must be a number from 1 to {LONGEST:g}", param="seconds", code="invalid_value")
    return wanted
