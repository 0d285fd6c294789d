"""What the synchronous and the asynchronous facade share: prompts to ids, default options, one submission per prompt.

Knows the engine by the few methods of :class:`EnginePort`; nothing here waits.
"""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeAlias

from ..core.config import EngineConfig
from ..core.errors import RequestError
from ..core.ports import Consumer
from ..core.request import SamplingParams
from ..core.stats import EngineStats
from .consumer import Submission
from .detokenize import TokenDecoder

#: Text up to this many characters is encoded before it is measured: that takes about a second.
_SHORT_TEXT = 1_000_000

#: One chat message: ``{"role": ..., "content": ...}``.
Message: TypeAlias = Mapping[str, Any]


class EnginePort(Protocol):
    """What facades use of :class:`paceline.engine.engine.Engine`."""

    tokenizer: Any
    default_params: dict[str, Any]
    config: EngineConfig

    def add_request(
        self, prompt_ids: Sequence[int], params: SamplingParams, consumer: Consumer, request_id: str | None = None
    ) -> str: ...

    def add_samples(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        consumers: Sequence[Consumer],
        request_id: str | None = None,
        namespace: str | None = None,
    ) -> list[str]: ...

    def abort(self, request_id: str, reason: str = ...) -> bool: ...

    def stats(self) -> EngineStats: ...

    def info(self) -> dict[str, Any]: ...

    def turn_seconds(self) -> float: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Prompt:
    """A prompt ready to run. ``text`` is ``None`` if ids were given."""

    text: str | None
    ids: tuple[int, ...]


#: What callers may give as one prompt: text, token ids, or what ``encode`` made of either.
PromptLike: TypeAlias = str | Sequence[int] | Prompt


@dataclass(frozen=True)
class ChatOptions:
    """How messages become a prompt: ``template`` (``None`` = the model's), whether the assistant's turn is opened, and
    what else the template is given."""

    template: str | None = None
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RequestOptions:
    """What one request brings beside its prompt and sampling parameters. ``markers``: special tokens that show as text,
    and how. ``namespace``: who may share what drafters and caches keep of its text (``None`` = everybody without one).
    """

    request_id: str | None = None
    namespace: str | None = None
    markers: Mapping[int, str] = field(default_factory=dict)


class Frontend:
    """Turns what callers write into what the engine takes; errors name the prompt at fault."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self.tokenizer = engine.tokenizer
        self._decoder = None if engine.tokenizer is None else TokenDecoder(engine.tokenizer)
        self._spec_tokens = int(engine.info()["spec_tokens"])

    @property
    def decoder(self) -> TokenDecoder | None:
        """Text of single tokens and of growing answers; ``None`` with ``skip_tokenizer_init``."""
        return self._decoder

    def encode(self, prompt: PromptLike, name: str = "prompt") -> Prompt:
        """Text as the tokenizer encodes it (BOS added if the model has one), ids as they are."""
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, str):
            ids = self._encoded(prompt, name, add_special_tokens=True)
            text: str | None = prompt
        else:
            ids, text = _token_ids(prompt, name), None
        if not ids:
            raise RequestError(name, "is empty; give at least one token")
        return Prompt(text, ids)

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions, name: str = "messages") -> Prompt:
        """Messages through the model's chat template, which brings its own special tokens."""
        tokenizer = self._tokenizer(name)
        if options.template is None and not tokenizer.chat_template:
            raise RequestError(name, "the model has no chat template; use generate, or give chat_template")
        try:
            text = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=options.template,
                add_generation_prompt=options.add_generation_prompt,
                tokenize=False,
                **(options.template_kwargs or {}),
            )
        except Exception as error:  # templates are programs of the model's authors: they raise what they like
            raise RequestError(name, f"the chat template refuses them: {error}") from error
        ids = self._encoded(text, name, add_special_tokens=False)
        if not ids:
            raise RequestError(name, "are empty under the chat template; give at least one token")
        return Prompt(text, ids)

    def _encoded(self, text: str, name: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        tokenizer = self._tokenizer(name)
        if len(text) > _SHORT_TEXT and len(text) > self._most_characters:
            # Encoding megabytes takes long, and others wait for it.
            raise RequestError(name, f"has {len(text)} characters, more than max_model_len tokens can hold")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError(name, "holds a lone surrogate, which is no character") from None
        return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))

    @functools.cached_property
    def _most_characters(self) -> float:
        """No context holds more: a token stands for at most the characters of its piece. Unbounded where unknown runs
        of characters may become one token."""
        decoder = self._decoder
        if decoder is None or not (decoder.falls_back_to_bytes or decoder.may_split_characters):
            return float("inf")
        return int(self._engine.info()["max_model_len"]) * max(map(len, self.tokenizer.get_vocab()))

    def default_params(self, **overrides: Any) -> SamplingParams:
        """Options of the model's generation config (unless switched off), then ``overrides``."""
        known = {field.name for field in fields(SamplingParams)}
        chosen = {name: value for name, value in self._engine.default_params.items() if name in known}
        return SamplingParams(**(chosen | overrides))

    def submission(self, prompt: Prompt, params: SamplingParams, options: RequestOptions | None = None) -> Submission:
        """What a consumer must know of one request. Without a request id a fresh one is made."""
        if params.stop_strings and self._decoder is None:
            raise RequestError("stop", "stop strings need a tokenizer, and skip_tokenizer_init is set")
        chosen = options or RequestOptions()
        name = f"req-{uuid.uuid4().hex[:16]}" if chosen.request_id is None else chosen.request_id
        return Submission(
            name,
            prompt.text,
            prompt.ids,
            params,
            self._decoder,
            self._spec_tokens,
            markers=chosen.markers,
            namespace=chosen.namespace,
        )

    def submit(self, prompt: Prompt, submission: Submission, consume: Callable[[Submission], Consumer]) -> list[str]:
        """Hand a prompt to the engine, once per sample asked for; returns the ids to abort it by."""
        params, name = submission.params, submission.request_id
        if params.best_of is not None and params.logprobs is None:  # the ranking needs them, the caller does not
            submission = replace(submission, params=replace(params, logprobs=0))
            params = submission.params
        consumers = [consume(replace(submission, index=place)) for place in range(params.samples)]
        if submission.namespace is not None:
            return self._engine.add_samples(prompt.ids, params, consumers, name, submission.namespace)
        if params.samples == 1:
            return [self._engine.add_request(prompt.ids, params, consumers[0], name)]
        return self._engine.add_samples(prompt.ids, params, consumers, name)

    def _tokenizer(self, name: str) -> Any:
        if self.tokenizer is None:
            raise RequestError(name, "is text, and skip_tokenizer_init is set; give token ids")
        return self.tokenizer


def refuse_best_of(params: SamplingParams) -> None:
    """A stream cannot take back what it has shown."""
    if params.best_of is not None and params.best_of > params.n:
        raise RequestError("best_of", "cannot be streamed: which samples are kept is known at the end; use generate")


def prompt_list(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    """One prompt or many, as a list. A flat list of integers is one prompt."""
    if isinstance(prompts, str | Prompt):
        return [prompts]
    if not len(prompts):
        raise RequestError("prompts", "is empty; give at least one prompt")
    items: list[Any] = list(prompts)
    return [items] if all(isinstance(item, int) for item in items) else items


def conversation_list(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or many, as a list."""
    if not messages:
        raise RequestError("messages", "is empty; give at least one message")
    items: list[Any] = list(messages)
    conversations: list[Any] = [items] if all(isinstance(item, Mapping) for item in items) else items
    for place, conversation in enumerate(conversations):
        if isinstance(conversation, str | Mapping) or not all(isinstance(item, Mapping) for item in conversation):
            raise RequestError(f"messages[{place}]", "must be a list of messages with a role and a content")
        if not conversation:
            raise RequestError(f"messages[{place}]", "is empty; give at least one message")
    return conversations


def params_list(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """One set of options for all prompts, or one for each."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError("sampling_params", f"holds {len(params)} entries for {count} prompts; give one or {count}")
    return list(params)


def _token_ids(prompt: Sequence[int], name: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(token) for token in prompt)
    except TypeError:
        raise RequestError(name, f"must be text or a list of token ids, not {prompt!r:.80}") from None
