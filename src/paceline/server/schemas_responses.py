"""Wire schemas of ``/v1/responses``: text and functions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schemas import Answer, Assistant, Metrics, Speaker
from .schemas_sampling import Prediction, RequestFields
from .strict import Many, Strict

Status = Literal["completed", "incomplete", "in_progress"]


class ContentPart(Strict):
    """Text that was said; annotations and scores of earlier answers are taken and not used."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class MessageItem(Strict):
    role: Speaker
    content: str | Many[ContentPart]
    type: Literal["message"] | None = None
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class FunctionCallItem(Strict):
    """A call that the assistant made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    namespace: None = None


class FunctionOutputItem(Strict):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[ContentPart]
    id: str | None = None
    status: Status | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Strict):
    """A thinking block of an earlier answer."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Many[ReasoningText] | None = None
    content: Many[ReasoningText] | None = None
    encrypted_content: None = None
    status: Status | None = None


InputItem = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem


class FunctionTool(Strict):
    type: Literal["function"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunctionTool(Strict):
    type: Literal["function"]
    name: str


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextSettings(Strict):
    format: TextFormat | None = None


class ReasoningSettings(Strict):
    effort: str | None = None
    summary: None = None


class ResponsesRequest(RequestFields):
    """A conversation to be answered."""

    input: str | Many[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Many[FunctionTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    store: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prediction: Prediction | None = None
    fill: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OutputText(Answer):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class ReasoningPart(Answer):
    type: Literal["reasoning_text"]
    text: str


class OutputItem(Answer):
    """A message, a thinking block or a function call, by ``type``."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Status
    role: Assistant | None = None
    content: list[OutputText | ReasoningPart] | None = None
    summary: list[Any] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class InputTokensDetails(Answer):
    cached_tokens: int


class OutputTokensDetails(Answer):
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class ResponseUsage(Answer):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails | None = None
    output_tokens_details: OutputTokensDetails | None = None


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class ResponseObject(Answer):
    """The answer; events of a stream carry it too."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]
    metrics: Metrics | None = None


class ResponseEvent(Answer):
    """One event of a stream; its other fields depend on ``type``."""

    type: str
    sequence_number: int
