"""Wire schemas that all routes share: errors, models, usage, functions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .strict import Strict

#: Roles of messages in a conversation.
Assistant = Literal["assistant"]
ASSISTANT: Assistant = "assistant"
Speaker = Literal["system", "developer", "user"] | Assistant


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
