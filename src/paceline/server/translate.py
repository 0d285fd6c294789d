"""From request bodies to ``SamplingParams``: pure functions without HTTP, engine or clock. Errors name the field as the
caller spelt it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..core.errors import RequestError
from ..core.params import SamplingParams
from .errors import ApiError, bad_field, of_exception
from .schemas_chat import ChatRequest
from .schemas_sampling import CompletionFields, Prediction, RequestFields, ResponseFormat, Speculation
from .schemas_text import CompletionRequest

#: Fields that mean the same under the same name.
SAME = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "filter_order"),
    *("curve", "repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_window", "dry_multiplier"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "logit_bias", "bad_words"),
    *("no_repeat_ngram_size", "thinking_budget", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "best_of"),
    *("include_stop_str_in_output", "seed", "logprobs_mode", "prompt_logprobs", "num_draft_tokens", "max_tokens"),
    "fill",
)
#: What text completions generate unless they say otherwise, as elsewhere.
COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Wanted:
    """Options of one request: fields of ``SamplingParams`` that were given, and how the caller spelt them where that
    differs (field of ours or its first part -> the caller's)."""

    options: Mapping[str, Any]
    spelt: Mapping[str, str] = field(default_factory=dict)

    def over(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """The parameters, ``defaults`` (the model's own) below them; :class:`ApiError` naming what is out of range."""
        known = {each.name for each in fields(SamplingParams)}
        chosen = {name: value for name, value in defaults.items() if name in known}
        for name in self.options:
            if name not in known:
                raise bad_field(self.spelt.get(name, name), "is not supported by this engine")
        try:
            return SamplingParams(**(chosen | dict(self.options)))
        except RequestError as error:
            raise self.told(error) from None

    def told(self, error: Exception) -> ApiError:
        """The error under the caller's names."""
        if not isinstance(error, RequestError):
            return of_exception(error)
        for ours, theirs in self.spelt.items():
            if error.field == ours or error.field.startswith(f"{ours}."):
                message = str(error).removeprefix(f"{error.field}: ")
                return of_exception(RequestError(theirs, message))
        return of_exception(error)


def chat_options(body: ChatRequest) -> Wanted:
    """Options of a conversation. Its length has no default: until the model ends or the context does."""
    options, spelt = _completion_options(body)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise bad_field("max_tokens", "differs from max_completion_tokens; leave one of them out")
        options["max_tokens"] = body.max_completion_tokens
        spelt["max_tokens"] = "max_completion_tokens"
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_field("top_logprobs", "needs logprobs to be true")
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
        spelt["logprobs"] = "top_logprobs"
    return Wanted(options, spelt)


def text_options(body: CompletionRequest) -> Wanted:
    """Options of a text completion."""
    options, spelt = _completion_options(body)
    options.setdefault("max_tokens", max(COMPLETION_TOKENS, body.min_tokens or 0))
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
        if body.echo:
            if body.stream:
                raise bad_field("echo", "cannot be streamed together with logprobs")
            options.setdefault("prompt_logprobs", body.logprobs)
    return Wanted(options, spelt)


def _completion_options(body: CompletionFields) -> tuple[dict[str, Any], dict[str, str]]:
    options, spelt = shared_options(body)
    if body.stream and body.prompt_logprobs is not None:
        raise bad_field("prompt_logprobs", "cannot be streamed")
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "needs stream to be true")
    constraint = structured_format(body.response_format)
    if constraint is not None:
        if "structured_outputs" in options:
            raise bad_field("structured_outputs", "cannot be combined with response_format; give one of the two")
        options["structured_outputs"] = constraint
        deep = "response_format.json_schema.schema" if "json" in constraint else "response_format"
        spelt["structured_outputs"] = deep
    if body.prediction is not None:
        options["prediction"] = predicted_text(body.prediction)
    return options, spelt


def shared_options(body: RequestFields) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of every route, and how they were spelt where that differs."""
    options = {name: getattr(body, name) for name in SAME if getattr(body, name, None) is not None}
    if body.hlg is not None:
        options["hlg"] = body.hlg.model_dump(exclude_none=True)
    if body.forced_tokens is not None:
        options["forced_tokens"] = _by_position(body.forced_tokens)
    if body.structured_outputs is not None:
        given = body.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        options["structured_outputs"] = given
    return options, _speculation(body, options)


def _speculation(body: RequestFields, options: dict[str, Any]) -> dict[str, str]:
    if body.speculative is None:
        return {}
    if not isinstance(body.speculative, Speculation):
        options["speculative"] = body.speculative
        return {}
    if body.speculative.enabled is not None:
        options["speculative"] = body.speculative.enabled
    depth = body.speculative.num_draft_tokens
    if depth is None:
        return {}
    if options.setdefault("num_draft_tokens", depth) != depth:
        raise bad_field("num_draft_tokens", "differs from speculative.num_draft_tokens; leave one of them out")
    return {"num_draft_tokens": "speculative.num_draft_tokens"}


def structured_format(given: ResponseFormat | None) -> dict[str, Any] | None:
    """``response_format`` as ``structured_outputs``; ``None`` for plain text."""
    if given is None:
        return None
    if given.type == "json_schema":
        if given.json_schema is None:
            raise bad_field("response_format.json_schema", "is missing")
        return {"json": given.json_schema.json_schema}
    if given.json_schema is not None:
        raise bad_field("response_format.json_schema", 'goes with type "json_schema" only')
    return {"json_object": True} if given.type == "json_object" else None


def predicted_text(given: Prediction) -> str:
    return given.content if isinstance(given.content, str) else "".join(part.text for part in given.content)


def _by_position(given: Mapping[str, int]) -> dict[int, int]:
    """JSON has string keys: digits are positions."""
    for key in given:
        if not (key.isascii() and key.isdigit()):
            raise bad_field("forced_tokens", f"must map positions to token ids, and {key!r:.40} is no position")
    return {int(key): token for key, token in given.items()}
