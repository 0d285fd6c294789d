"""``LLM``: the synchronous facade. Submits prompts, waits, returns results in order; the engine does the work."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.config import EngineConfig
from ..core.errors import EngineClosed, RequestError
from ..core.request import SamplingParams
from ..core.stats import EngineStats
from .consumer import ResultConsumer, StreamConsumer, Submission
from .frontend import (
    ChatOptions,
    EnginePort,
    Frontend,
    Message,
    Prompt,
    PromptLike,
    conversation_list,
    params_list,
    prompt_list,
    refuse_best_of,
)
from .outputs import RequestOutput, StreamDelta

if TYPE_CHECKING:
    from ..draft.base import DraftProvider
    from ..models.progress import Progress

_Advance = Callable[[int], None]


class LLM:
    """A loaded model that answers prompts with speculative decoding.

    ``model``: ``"demo"``, a local directory, a ``.gguf`` file or a hub id. ``drafter``: a ready
    :class:`paceline.draft.base.DraftProvider`, used instead of ``spec_method``. ``settings``: the flat names of
    :class:`paceline.EngineConfig` (``spec_method``, ``spec_tokens``, ``device``, ``dtype``, ``max_num_seqs``,
    ``skip_tokenizer_init`` ...); unknown ones are refused. ``progress(message, done, total)`` hears of loading.

    Use it as a context manager, or call :meth:`close`. All methods may be called from several threads.
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
    def from_engine(cls, engine: EnginePort) -> LLM:
        """A facade over a running engine, which it closes at the end."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: EnginePort) -> None:
        self.engine = engine
        self._frontend = Frontend(engine)
        self._closer = weakref.finalize(self, engine.close)

    @property
    def tokenizer(self) -> Any:
        """The model's ``transformers`` tokenizer, ``None`` with ``skip_tokenizer_init``."""
        return self._frontend.tokenizer

    @property
    def config(self) -> EngineConfig:
        return self.engine.config

    def info(self) -> dict[str, Any]:
        """What runs: model, dtype, device, exactness, drafter, limits."""
        return self.engine.info()

    def stats(self) -> EngineStats:
        """Figures of the engine since it started."""
        return self.engine.stats()

    def get_default_sampling_params(self, **overrides: Any) -> SamplingParams:
        """What :meth:`chat` uses without ``sampling_params``: the model's generation config, then ``overrides``."""
        return self._frontend.default_params(**overrides)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Complete one or many prompts (text, or lists of token ids); results come in the order of the prompts.

        ``sampling_params``: one for all or one per prompt; ``None`` = ``SamplingParams()``. ``progress``: show a bar.
        A prompt or option that is refused raises :class:`paceline.RequestError` naming it, and nothing runs on. A
        request that fails later ends with ``finish_reason == "error"`` and its ``error``; the others are not touched.
        Ctrl-C aborts all of them.
        """
        items = prompt_list(prompts)
        encoded = [self._frontend.encode(item, _name("prompts", i, len(items))) for i, item in enumerate(items)]
        params = SamplingParams() if sampling_params is None else sampling_params
        return self._run(encoded, params_list(params, len(encoded)), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one or many conversations through the model's chat template; otherwise as :meth:`generate`.

        Without ``sampling_params`` the options of the model's generation config hold.
        """
        items = conversation_list(messages)
        options = ChatOptions(chat_template, add_generation_prompt, chat_template_kwargs)
        encoded = [
            self._frontend.encode_chat(item, options, _name("messages", i, len(items))) for i, item in enumerate(items)
        ]
        params = self._frontend.default_params() if sampling_params is None else sampling_params
        return self._run(encoded, params_list(params, len(encoded)), progress)

    def encode(self, prompt: PromptLike) -> Prompt:
        """A prompt as ids, ready for :meth:`stream` or :meth:`generate`."""
        return self._frontend.encode(prompt)

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions | None = None) -> Prompt:
        """A conversation as ids through the chat template, ready for :meth:`stream` or :meth:`generate`."""
        return self._frontend.encode_chat(messages, options or ChatOptions())

    def stream(self, prompt: PromptLike, sampling_params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """Complete one prompt piece by piece; the last delta carries the result. Leaving the loop aborts it."""
        deltas: queue.SimpleQueue[StreamDelta] = queue.SimpleQueue()
        ready, params = self._frontend.encode(prompt), sampling_params or SamplingParams()
        refuse_best_of(params)
        submission = self._frontend.submission(ready, params)
        names = self._frontend.submit(ready, submission, lambda each: StreamConsumer(each, deltas.put))
        return self._deltas(deltas, names)

    def close(self) -> None:
        """Stop the engine; requests in flight end with :class:`paceline.EngineClosed`. May be called twice."""
        self._closer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, prompts: list[Prompt], params: list[SamplingParams], progress: bool) -> list[RequestOutput]:
        batch = _Batch(self.engine, self._frontend)
        with _bar(len(prompts)) if progress else nullcontext(None) as advance:
            return batch.run(list(zip(prompts, params, strict=True)), advance)

    def _deltas(self, deltas: queue.SimpleQueue[StreamDelta], names: Sequence[str]) -> Iterator[StreamDelta]:
        running = len(names)
        try:
            while running:
                delta = deltas.get()
                running -= delta.output is not None
                raise_if_engine_failed(delta.output)
                yield delta
        finally:
            if running:
                for name in names:
                    self.engine.abort(name, "the caller stopped reading")


class _Batch:
    """Runs many requests at once and gathers their results."""

    def __init__(self, engine: EnginePort, frontend: Frontend) -> None:
        self._engine = engine
        self._frontend = frontend
        self._results: dict[int, RequestOutput] = {}
        self._samples: dict[int, dict[int, RequestOutput]] = {}
        self._names: dict[int, list[str]] = {}
        self._wanted: dict[int, SamplingParams] = {}
        self._changed = threading.Condition()

    def run(
        self, requests: Sequence[tuple[Prompt, SamplingParams]], advance: _Advance | None = None
    ) -> list[RequestOutput]:
        """Results in the order of ``requests``. On any exception, Ctrl-C included, everything in flight is aborted."""
        try:
            for place, (prompt, params) in enumerate(requests):
                self._submit(place, prompt, params, _name("prompts", place, len(requests)))
            self._wait(len(requests), advance)
        except BaseException:
            for place in self._names.keys() - self._results.keys():
                for name in self._names[place]:
                    self._engine.abort(name, "the caller gave up")
            self._wait(len(self._names), None)
            raise
        results = [self._results[place] for place in range(len(requests))]
        for result in results:
            raise_if_engine_failed(result)
        return results

    def _submit(self, place: int, prompt: Prompt, params: SamplingParams, name: str) -> None:
        submission = self._frontend.submission(prompt, params)
        self._wanted[place] = params

        def consume(each: Submission) -> ResultConsumer:
            return ResultConsumer(each, lambda output: self._done(place, each, output))

        try:
            self._names[place] = self._frontend.submit(prompt, submission, consume)
        except RequestError as error:
            message = str(error).removeprefix(f"{error.field}: ")
            raise RequestError(error.field if name == "prompts" else f"{name}: {error.field}", message) from error

    def _done(self, place: int, submission: Submission, output: RequestOutput) -> None:
        """A sample of a prompt ended; the prompt's result is complete with the last one."""
        with self._changed:
            samples = self._samples.setdefault(place, {})
            samples[submission.index] = output
            if len(samples) == submission.params.samples:
                parts = [samples[index] for index in sorted(samples)]
                self._results[place] = RequestOutput.of_samples(parts, self._wanted[place])
                self._changed.notify_all()

    def _wait(self, count: int, advance: _Advance | None) -> None:
        """Until at least ``count`` requests have ended."""
        with self._changed:
            while True:
                if advance is not None:
                    advance(len(self._results))
                if len(self._results) >= count:
                    return
                self._changed.wait()


def raise_if_engine_failed(output: RequestOutput | None) -> None:
    """A request that ended because its engine did is no result: raise what ended the engine."""
    if output is not None and isinstance(output.error, EngineClosed):
        raise output.error


def _name(field: str, place: int, count: int) -> str:
    return field if count == 1 else f"{field}[{place}]"


def _bar(total: int) -> AbstractContextManager[_Advance]:
    from .progress import request_bar

    return request_bar(total)
