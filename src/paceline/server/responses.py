"""``/v1/responses``: OpenAI's newer form of a conversation, as a document or a stream of named events. Nothing is
stored: every call brings the whole conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..engine.frontend import Prompt
from ..engine.outputs import RequestOutput
from .conversation import Conversation
from .documented import ERRORS, stream_content
from .errors import ApiError, bad_field
from .messages import template_kwargs
from .responses_input import input_messages, response_options, tool_use
from .responses_output import OutputItems
from .schemas_responses import ResponseEvent, ResponseObject, ResponsesRequest
from .serving import Call, Running, running
from .state import ServerState
from .usage import metrics_of, usage_of
from .wire import Document, EventStream, named_event, until_gone

router = APIRouter()


@router.post(
    "/v1/responses",
    response_model=ResponseObject,
    responses=ERRORS | {200: {"content": stream_content(ResponseEvent)}},
)
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation."""
    call = Call.of(request, "resp_", body)
    answer = _Response(call, body, conversation_of(call.server, body))
    if body.stream:
        return EventStream(answer.events(), answer.failed)
    return Document(await until_gone(request, answer.document()))


def conversation_of(state: ServerState, body: ResponsesRequest) -> Conversation:
    """What is asked, checked against what the model can do."""
    profile = state.chat
    variables = template_kwargs(body.chat_template_kwargs)
    if body.reasoning is not None and body.reasoning.effort is not None:
        if not profile.reads("reasoning_effort"):
            raise bad_field("reasoning.effort", "the chat template of this model does not read it")
        variables["reasoning_effort"] = body.reasoning.effort
    return Conversation(profile, input_messages(body), tool_use(body), response_options(body), variables).prepared()


@dataclass
class _Response:
    """One call of the route."""

    call: Call
    body: ResponsesRequest
    conversation: Conversation
    _number: int = field(default=0, init=False)

    def _running(self) -> Any:
        conversation = self.conversation
        return running(
            self.call, [lambda: conversation.encode(self.call.llm)], conversation.wanted, conversation.markers
        )

    def _items(self) -> OutputItems:
        return OutputItems(self.conversation.dialect.id_length if self.conversation.dialect else 24)

    async def document(self) -> dict[str, Any]:
        """The whole answer."""
        async with self._running() as run:
            (output,) = await run.outputs()
        reader, items = self.conversation.reader(run.prompts[0]), self._items()
        for events in (reader.feed(output.text), reader.finish()):
            list(items.take(events))
        list(items.close(_status(output)))
        return self._finished(run, output, items)

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a stream."""
        async with self._running() as run:
            items, reader = self._items(), self.conversation.reader(run.prompts[0])
            started = False
            async for _, delta in run.deltas():
                if not started:
                    started = True
                    begun = self._object(run, "in_progress", [])
                    for kind in ("response.created", "response.in_progress"):
                        yield self._event({"type": kind, "response": begun})
                for event in self._all(items.take(reader.feed(delta.text))):
                    yield event
                if delta.output is not None:
                    for event in self._all(items.take(reader.finish())):
                        yield event
                    for event in self._all(items.close(_status(delta.output))):
                        yield event
                    whole = self._finished(run, delta.output, items)
                    yield self._event({"type": f"response.{whole['status']}", "response": whole})

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that broke."""
        return self._event({"type": "error", "code": error.code, "message": error.message, "param": error.param})

    def _all(self, events: Iterable[dict[str, Any]]) -> list[bytes]:
        return [self._event(event) for event in events]

    def _event(self, event: dict[str, Any]) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._number} | event
        self._number += 1
        return named_event(numbered)

    def _finished(self, run: Running, output: RequestOutput, items: OutputItems) -> dict[str, Any]:
        return self._object(run, _status(output), items.items) | {
            "incomplete_details": {"reason": "max_output_tokens"} if output.finish_reason == "length" else None,
            "usage": self._usage(output, run.prompts[0]),
            "metrics": metrics_of([output]),
        }

    def _object(self, run: Running, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body = self.body
        effort = None if body.reasoning is None else body.reasoning.effort
        text = {"format": {"type": "text"}} if body.text is None else body.text.model_dump(by_alias=True)
        choice = body.tool_choice
        return {
            "id": self.call.id,
            "object": "response",
            "created_at": self.call.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.call.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": run.params.temperature,
            "text": text,
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump() if choice else "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": run.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _usage(self, output: RequestOutput, prompt: Prompt) -> dict[str, Any]:
        reasoning = self.conversation.reasoning_tokens(output.token_ids, prompt)
        prediction = self.body.prediction is not None
        usage = usage_of([output], prefix_cache=self.call.prefix_cache, prediction=prediction, reasoning=reasoning)
        names = {
            "prompt_tokens": "input_tokens",
            "completion_tokens": "output_tokens",
            "prompt_tokens_details": "input_tokens_details",
            "completion_tokens_details": "output_tokens_details",
        }
        return {names.get(name, name): value for name, value in usage.items()}


def _status(output: RequestOutput) -> str:
    return "incomplete" if output.finish_reason == "length" else "completed"
