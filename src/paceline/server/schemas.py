"""Wire schemas that all routes share: the strict base, errors, models, usage, tokenize."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Base of what callers send: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _characters(cls, data: Any) -> Any:
        """JSON can spell half of a character, which no text may hold."""
        if isinstance(data, dict):
            for name, value in data.items():
                texts = value if isinstance(value, list) else (name, value)
                if not all(_encodable(text) for text in texts):
                    raise PydanticCustomError("lone_surrogate", "holds a lone surrogate", {"field": str(name)})
        return data


def _encodable(value: object) -> bool:
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Answer(BaseModel):
    """Base of what the server sends."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """Every error of every route."""

    error: ErrorDetail


class HealthReport(Answer):
    status: str
    in_flight: int
    num_requests_running: int | None = None
    num_requests_waiting: int | None = None
    drafter_failure: str | None = None


class Version(Answer):
    version: str


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[Model]


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(Answer):
    """``prompt_tokens_details`` is absent while no prefix cache counts hits."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecoding(Answer):
    """Definitions: docs/server.md. ``time_saved_ms`` and ``phase_ms`` are absent while they are not known."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    forwards: int
    forwards_saved: int
    tokens_per_forward: float
    drafted_by_position: list[int]
    accepted_by_position: list[int]
    time_saved_ms: float | None = None
    phase_ms: dict[str, float] | None = None


class Metrics(Answer):
    speculative_decoding: SpeculativeDecoding


class StreamOptions(Strict):
    """``include_origins``: every chunk says which of its text was drafted, copied, corrected, bonus or plain."""

    include_usage: bool | None = None
    include_origins: bool | None = None


class FunctionDefinition(Strict):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
