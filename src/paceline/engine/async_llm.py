"""``AsyncLLM``: the facade for asyncio. Deltas cross from the engine thread to the event loop; nothing blocks it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.config import EngineConfig
from ..core.request import SamplingParams
from ..core.stats import EngineStats
from .consumer import StreamConsumer
from .delta_stream import DeltaStream, Listener, LoopMailbox
from .frontend import (
    ChatOptions,
    EnginePort,
    Frontend,
    Message,
    Prompt,
    PromptLike,
    RequestOptions,
    refuse_best_of,
)
from .llm import raise_if_engine_failed
from .outputs import RequestOutput, StreamDelta

if TYPE_CHECKING:
    from ..draft.base import DraftProvider
    from ..models.progress import Progress


class AsyncLLM:
    """A loaded model that answers prompts inside an event loop. Arguments are those of :class:`paceline.LLM`.

    The constructor loads the model and blocks while it does; inside a running loop use ``await AsyncLLM.create(...)``.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        drafter: DraftProvider | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        from .engine import Engine

        config = EngineConfig.build(model=model, **settings)
        self._attach(Engine.build(config, drafter=drafter, progress=progress))

    @classmethod
    async def create(cls, model: str | None = None, **arguments: Any) -> AsyncLLM:
        """The same, loading in a thread beside the loop."""
        return await asyncio.to_thread(cls, model, **arguments)

    @classmethod
    def from_engine(cls, engine: EnginePort) -> AsyncLLM:
        """A facade over a running engine, which it closes at the end."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: EnginePort) -> None:
        self.engine = engine
        self._frontend = Frontend(engine)
        self._closer = weakref.finalize(self, engine.close)
        self._mailbox: tuple[asyncio.AbstractEventLoop, LoopMailbox] | None = None

    @property
    def frontend(self) -> Frontend:
        """What turns text and messages into prompts, and prompts into submissions."""
        return self._frontend

    @property
    def tokenizer(self) -> Any:
        """The model's ``transformers`` tokenizer, ``None`` with ``skip_tokenizer_init``."""
        return self._frontend.tokenizer

    def info(self) -> dict[str, Any]:
        """What runs: model, dtype, device, exactness, drafter, limits."""
        return self.engine.info()

    def stats(self) -> EngineStats:
        """Figures of the engine since it started."""
        return self.engine.stats()

    def get_default_sampling_params(self, **overrides: Any) -> SamplingParams:
        """Options of the model's generation config, then ``overrides``."""
        return self._frontend.default_params(**overrides)

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[StreamDelta]:
        """Complete one prompt piece by piece; the last delta carries the result (``delta.output``). The engine waits
        for no reader: pieces that were not read in time come as one.

        Leaving the loop early, or cancelling the task, aborts the request. What is refused raises
        :class:`paceline.RequestError`, at the call or at the first step.
        """
        params = sampling_params or SamplingParams()
        refuse_best_of(params)
        return self._run(self._frontend.encode(prompt), params, request_id)

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[StreamDelta]:
        """As :meth:`stream`, for a conversation; without ``sampling_params`` the model's generation config holds."""
        options = ChatOptions(chat_template, add_generation_prompt, chat_template_kwargs)
        prompt = self._frontend.encode_chat(messages, options)
        params = sampling_params or self._frontend.default_params()
        refuse_best_of(params)
        return self._run(prompt, params, request_id)

    async def generate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> RequestOutput:
        """Complete one prompt and return its result. Run many at once with ``asyncio.gather``."""
        params = sampling_params or SamplingParams()
        return await _result(self._run(self._frontend.encode(prompt), params, request_id), params)

    async def chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """Answer one conversation and return its result; ``options`` are those of :meth:`chat_stream`."""
        params = sampling_params or self._frontend.default_params()
        shown = replace(params, best_of=None, n=params.samples, logprobs=_captured(params))
        return await _result(self.chat_stream(messages, shown, **options), params)

    def mailbox(self) -> LoopMailbox:
        """What wakes the running loop for all of its streams."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox[0] is not loop:
            self._mailbox = (loop, LoopMailbox(loop))
        return self._mailbox[1]

    def open(
        self,
        mailbox: LoopMailbox,
        prompt: Prompt,
        params: SamplingParams,
        options: RequestOptions | None = None,
        listener: Listener | None = None,
    ) -> OpenRequest:
        """Hand a prompt to the engine at once, for a reader on the loop of ``mailbox``. Callable from any thread, so
        that a long prompt need not hold up the loop. Whoever does not read to the end must call ``abort``.
        """
        submission = self._frontend.submission(prompt, params, options)
        stream = DeltaStream(mailbox, params.samples, listener)
        names = self._frontend.submit(prompt, submission, lambda each: StreamConsumer(each, stream.put))
        return OpenRequest(self.engine, tuple(names), stream, prompt)

    def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish reason ``"abort"``. Whether it was live."""
        return self.engine.abort(request_id)

    def close(self) -> None:
        """Stop the engine; streams in flight raise :class:`paceline.EngineClosed`. May be called twice."""
        self._closer()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    async def _run(self, prompt: Prompt, params: SamplingParams, request_id: str | None) -> AsyncIterator[StreamDelta]:
        request = self.open(self.mailbox(), prompt, params, RequestOptions(request_id))
        try:
            async for delta in request.stream:
                raise_if_engine_failed(delta.output)
                yield delta
        finally:
            request.abort("the caller stopped reading")


@dataclass(frozen=True)
class OpenRequest:
    """A prompt under way: ``names`` of its samples in the engine, and the ``stream`` of their deltas."""

    engine: EnginePort
    names: tuple[str, ...]
    stream: DeltaStream
    prompt: Prompt

    def abort(self, reason: str) -> None:
        """End what has not ended yet; a request that was read to its end is not touched."""
        if not self.stream.finished:
            for name in self.names:
                self.engine.abort(name, reason)


def _captured(params: SamplingParams) -> int | None:
    """Log-probabilities to ask for: those the caller wants, or the ones that ``best_of`` ranks by."""
    return 0 if params.best_of is not None and params.logprobs is None else params.logprobs


async def _result(deltas: AsyncIterator[StreamDelta], params: SamplingParams) -> RequestOutput:
    """The whole result of a stream: one choice per sample that ``params`` keep."""
    parts = {delta.index: delta.output async for delta in deltas if delta.output is not None}
    ordered = [parts[index] for index in sorted(parts)]
    return RequestOutput.of_samples(ordered, params)
