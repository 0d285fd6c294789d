"""Errors as OpenAI's clients expect them: a status and ``{"error": {message, type, param, code}}``. Maps the engine's
exceptions; decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Cancelled, EngineClosed, RequestError

_MAX_MESSAGE = 2000
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request is answered with ``status``. ``param``: the field at fault; ``code``: what clients may switch on."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "..."
        self.param = None if param is None else param[:200]
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON document of the answer."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_field(name: str, message: str) -> ApiError:
    """400 for a field of the body."""
    return ApiError(400, f"{name}: {message}", param=name, code="invalid_value")


def model_not_found(name: str, known: Sequence[str]) -> ApiError:
    return ApiError(
        404,
        f"The model {name!r:.120} does not exist here; this server has {', '.join(known)}.",
        param="model",
        code="model_not_found",
    )


def of_exception(error: BaseException) -> ApiError:
    """What a caller is told of an exception; a fault of ours is told without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        context = error.field in ("prompt", "messages", "max_tokens") and "max_model_len" in str(error)
        code = "context_length_exceeded" if context else "invalid_value"
        return ApiError(400, str(error), param=error.field, code=code)
    if isinstance(error, EngineClosed):
        return ApiError(503, "The engine is not running.", code="engine_closed", headers={"Retry-After": "10"})
    if isinstance(error, Cancelled):
        return ApiError(503, "The request was cancelled by the server.", code="cancelled")
    return ApiError(500, f"The engine failed at this request: {type(error).__name__}.", code="engine_failure")
