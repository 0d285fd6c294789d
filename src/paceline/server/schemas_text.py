"""Wire schemas of ``/v1/completions``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from .schemas import Answer, Metrics, Usage
from .schemas_chat import Message, Origin, PromptLogprob, Tool
from .schemas_sampling import MAX_TOP_LOGPROBS, CompletionFields
from .strict import Many, Strict

MAX_PROMPTS = 256


class CompletionRequest(CompletionFields):
    """A text to be gone on with: text, token ids, or a list of either."""

    prompt: str | Many[int] | Many[str] | Many[Many[int]]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    suffix: None = None


class TextLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    origins: list[Origin] | None = None


class TextCompletion(Answer):
    """The answer, and every event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None


class TokenizeRequest(Strict):
    """A text, or messages as the chat route would see them."""

    model: str | None = None
    prompt: str | None = None
    messages: Many[Message] | None = Field(default=None, min_length=1)
    tools: Many[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages, one of the two")
        return self


class TokenizeAnswer(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Many[int]


class DetokenizeAnswer(Answer):
    prompt: str
