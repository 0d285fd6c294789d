"""Routes about the server itself: models, health, version."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from .. import __version__
from .errors import model_not_found
from .schemas import ErrorBody, HealthReport, Model, ModelList, Version
from .state import ServerState
from .wire import Document

router = APIRouter()
_ERRORS: dict[int | str, dict[str, Any]] = {401: {"model": ErrorBody}, 503: {"model": ErrorBody}}


def server_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


@router.get("/health", response_model=HealthReport, responses={503: {"model": HealthReport}})
async def health(request: Request) -> Response:
    """200 if requests can be served; 503 while the model loads, after a failure, when the engine is stuck or stops."""
    state = server_of(request)
    healthy, status = state.health()
    report: dict[str, Any] = {"status": status, "in_flight": state.in_flight}
    info = state.info()
    report |= {key: info[key] for key in ("num_requests_running", "num_requests_waiting") if key in info}
    if info.get("drafter_failure"):
        report["drafter_failure"] = info["drafter_failure"]
    return Document(report, 200 if healthy else 503)


@router.get("/version", response_model=Version)
async def version() -> Response:
    return Document({"version": __version__})


@router.get("/v1/models", response_model=ModelList, responses=_ERRORS)
async def models(request: Request) -> Response:
    """Every name that requests may use."""
    state = server_of(request)
    return Document({"object": "list", "data": [_model(state, name) for name in state.names]})


@router.get("/v1/models/{name:path}", response_model=Model, responses=_ERRORS | {404: {"model": ErrorBody}})
async def model(request: Request, name: str) -> Response:
    state = server_of(request)
    if name not in state.names:
        raise model_not_found(name, state.names)
    return Document(_model(state, name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    info = state.engine.info()
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "paceline",
        "root": str(info["model"]),
        "max_model_len": int(min(info["max_model_len"], info["kv_cache_tokens"])),
    }
