"""``/v1/completions``: one or many texts gone on with, as a document or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..engine.frontend import Prompt, refuse_best_of
from ..engine.outputs import CompletionOutput, RequestOutput, StreamDelta
from .documented import ERRORS, stream_content
from .errors import bad_field
from .schemas_text import MAX_PROMPTS, CompletionRequest, TextCompletion
from .scores import TextScores, prompt_entries
from .serving import Call, Running, running
from .translate import text_options
from .usage import metrics_of, usage_of
from .wire import DONE, Document, EventStream, data_event, until_gone

router = APIRouter()


@router.post(
    "/v1/completions",
    response_model=TextCompletion,
    responses=ERRORS | {200: {"content": stream_content(TextCompletion)}},
)
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Go on with a text."""
    texts = _Texts(Call.of(request, "cmpl-", body), body, prompts_of(body))
    if body.stream:
        return EventStream(texts.events(), lambda error: data_event(error.body()) + DONE)
    return Document(await until_gone(request, texts.answer()))


def prompts_of(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request: a text, ids, or a list of either."""
    given: Any = body.prompt
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    prompts = given if several else [given]
    if len(prompts) > MAX_PROMPTS:
        raise bad_field("prompt", f"holds {len(prompts)} prompts, at most {MAX_PROMPTS} are allowed")
    return list(prompts)


@dataclass
class _Texts:
    """One call of the route."""

    call: Call
    body: CompletionRequest
    prompts: Sequence[str | list[int]]

    def _running(self) -> Any:
        encode = self.call.llm.frontend.encode
        single = len(self.prompts) == 1
        makers = [
            lambda prompt=prompt, name="prompt" if single else f"prompt[{place}]": encode(prompt, name)
            for place, prompt in enumerate(self.prompts)
        ]
        return running(self.call, makers, text_options(self.body))

    async def answer(self) -> dict[str, Any]:
        """The whole document."""
        async with self._running() as run:
            outputs = await run.outputs()
        choices = []
        for place, (output, prompt) in enumerate(zip(outputs, run.prompts, strict=True)):
            choices += [self._choice(place * len(output.outputs), output, each, prompt) for each in output.outputs]
        return self._head() | {"choices": choices} | self._figures(outputs)

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a stream."""
        async with self._running() as run:
            refuse_best_of(run.params)
            async for event in self._stream(run):
                yield event
        yield DONE

    async def _stream(self, run: Running) -> AsyncIterator[bytes]:
        head = self._head()
        options = self.body.stream_options
        usage = bool(options and options.include_usage)
        extra = {"usage": None} if usage else {}
        stream = _TextStream(self, run)
        ended: dict[tuple[int, int], RequestOutput] = {}
        async for place, delta in run.deltas():
            choice = stream.choice(place, delta)
            if delta.output is None:
                if choice is not None:
                    yield data_event(head | {"choices": [choice]} | extra)
                continue
            ended[place, delta.index] = delta.output
            chunk = head | {"choices": [choice]} | extra
            if len(ended) == run.params.samples * len(run.requests):
                figures = self._figures(_whole(ended, run))
                if usage:
                    yield data_event(chunk)
                    yield data_event(head | {"choices": []} | figures)
                else:
                    yield data_event(chunk | {"metrics": figures["metrics"]})
            else:
                yield data_event(chunk)

    def _head(self) -> dict[str, Any]:
        call = self.call
        return {"id": call.id, "object": "text_completion", "created": call.created, "model": call.model}

    def _figures(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        usage = usage_of(outputs, prefix_cache=self.call.prefix_cache, prediction=self.body.prediction is not None)
        return {"usage": usage, "metrics": metrics_of(outputs)}

    def prompt_text(self, prompt: Prompt) -> str:
        """The prompt as ``echo`` shows it."""
        if not self.body.echo:
            return ""
        if prompt.text is not None:
            return prompt.text
        decoder = self.call.llm.frontend.decoder
        return "" if decoder is None else decoder.decode(prompt.ids)

    def _choice(self, first: int, output: RequestOutput, choice: CompletionOutput, prompt: Prompt) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "index": first + choice.index,
            "text": self.prompt_text(prompt) + choice.text,
            "logprobs": self._logprobs(output, choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            shown |= {"token_ids": list(choice.token_ids), "prompt_token_ids": list(output.prompt_token_ids)}
        if self.body.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_entries(output.prompt_logprobs)
        return shown

    def _logprobs(self, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any] | None:
        if choice.logprobs is None:
            return None
        scores = self.scores()
        if not self.body.echo or output.prompt_logprobs is None:
            return scores.record(choice.token_ids, choice.logprobs)
        return scores.record((*output.prompt_token_ids, *choice.token_ids), (*output.prompt_logprobs, *choice.logprobs))

    def scores(self) -> TextScores:
        decoder = self.call.llm.frontend.decoder
        return TextScores(self.body.logprobs or 0, None if decoder is None else decoder.start())


class _TextStream:
    """The choices of a stream, one per delta."""

    def __init__(self, texts: _Texts, run: Running) -> None:
        self._texts = texts
        self._run = run
        self._body = texts.body
        self._scores: dict[tuple[int, int], TextScores] = {}
        self._origins = bool(self._body.stream_options and self._body.stream_options.include_origins)

    def choice(self, place: int, delta: StreamDelta) -> dict[str, Any] | None:
        """``None`` where there is nothing to tell yet."""
        key = (place, delta.index)
        text = delta.text
        if key not in self._scores:
            self._scores[key] = self._texts.scores()
            text = self._texts.prompt_text(self._run.prompts[place]) + text
        extras = self._extras(key, delta)
        if not text and not extras and delta.output is None:
            return None
        output = delta.output
        shown: dict[str, Any] = {
            "index": place * self._run.params.samples + delta.index,
            "text": text,
            "logprobs": None,
            "finish_reason": None if output is None else output.finish_reason,
        }
        if output is not None:
            shown["stop_reason"] = output.stop_reason
        return shown | extras

    def _extras(self, key: tuple[int, int], delta: StreamDelta) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if delta.logprobs:
            extras["logprobs"] = self._scores[key].record(delta.token_ids, delta.logprobs)
        if self._body.return_token_ids and delta.token_ids:
            extras["token_ids"] = list(delta.token_ids)
        if self._origins and delta.pieces:
            extras["origins"] = [{"text": piece.text, "origin": piece.origin} for piece in delta.pieces]
        return extras


def _whole(ended: dict[tuple[int, int], RequestOutput], run: Running) -> list[RequestOutput]:
    """Results per prompt from those of all samples."""
    parts = [[ended[key] for key in sorted(ended) if key[0] == place] for place in range(len(run.requests))]
    return [RequestOutput.of_samples(samples, run.params) for samples in parts]
