"""Request fields that all generating routes share. Types only: ranges are checked by ``SamplingParams``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schemas import StreamOptions
from .strict import Many, Strict

#: Most alternatives per token that one may ask for over HTTP.
MAX_TOP_LOGPROBS = 20


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Speculation(Strict):
    """``enabled: false`` decodes plainly; ``num_draft_tokens``: most proposals per round. Neither changes a token."""

    enabled: bool | None = None
    num_draft_tokens: int | None = None


class Prediction(Strict):
    """Text that much of the answer is expected to repeat."""

    type: Literal["content"]
    content: str | Many[TextPart]


class JsonSchema(Strict):
    """OpenAI's envelope; every schema is enforced, whatever ``strict`` says."""

    name: str
    description: str | None = None
    strict: bool | None = None
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """One of them."""

    json_schema: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Many[str] | None = None
    grammar: str | None = None


class Hlg(Strict):
    pivot: Literal["top", "entropy", "median"] | None = None
    linear: float | None = None
    toe: float | None = None
    shoulder: float | None = None


class RequestFields(Strict):
    """Fields of every generating route."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    # Labels for the caller's own use.
    user: str | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=64)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    # Beyond OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    filter_order: Literal["temperature_first", "temperature_last"] | None = None
    curve: Many[Many[float]] | None = None
    hlg: Hlg | None = None
    repetition_penalty: float | None = None
    penalty_window: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Many[str] | None = None
    bad_words: Many[str | Many[int]] | None = None
    no_repeat_ngram_size: int | None = None
    forced_tokens: dict[str, int] | None = None
    thinking_budget: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Many[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    speculative: bool | Speculation | None = None
    num_draft_tokens: int | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)


class CompletionFields(RequestFields):
    """Fields of chat and text completions."""

    n: int | None = None
    best_of: int | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs_mode: Literal["raw", "processed"] | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    fill: bool | None = None
    return_token_ids: bool | None = None
    store: Literal[False] | None = None
