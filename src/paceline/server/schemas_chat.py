"""Wire schemas of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schemas import Answer, Assistant, FunctionDefinition, Metrics, Speaker, Usage
from .schemas_sampling import MAX_TOP_LOGPROBS, CompletionFields, TextPart
from .strict import Many, Strict


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    """A call that the assistant made earlier."""

    id: str
    type: Literal["function"]
    function: FunctionCall
    index: int | None = None


class Message(Strict):
    """One message; which fields it may have depends on its role."""

    role: Speaker | Literal["tool"]
    content: str | Many[TextPart] | None = None
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(CompletionFields):
    """A conversation to be answered."""

    messages: Many[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Many[Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: Many[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob] | None
    refusal: None = None


class AnswerMessage(Answer):
    role: Assistant
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class PromptLogprob(Answer):
    logprob: float
    rank: int
    decoded_token: str | None


class ChatCompletion(Answer):
    """The answer of a request that does not stream."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class DeltaFunction(Answer):
    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(Answer):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunction


class Delta(Answer):
    role: Assistant | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class Origin(Answer):
    text: str
    origin: Literal["drafted", "copied", "corrected", "bonus", "plain"]


class ChunkChoice(Answer):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    origins: list[Origin] | None = None


class ChatChunk(Answer):
    """One event of a stream. The last ones carry ``metrics`` and, if asked for, ``usage`` (then without choices)."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None
    prompt_token_ids: list[int] | None = None
