"""``/v1/chat/completions``: a conversation in, an answer or a stream of chunks out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..engine.frontend import Prompt, refuse_best_of
from ..engine.outputs import CompletionOutput, RequestOutput
from .answers import call_id, whole_answer
from .chat_stream import ChatStream
from .conversation import Conversation, ToolUse
from .documented import ERRORS, stream_content
from .errors import bad_field
from .messages import template_kwargs, template_messages
from .schemas import ASSISTANT
from .schemas_chat import ChatChunk, ChatCompletion, ChatRequest, NamedTool
from .scores import chat_entries, prompt_entries
from .serving import Call, Running, running
from .state import ServerState
from .tools.events import WrittenCall
from .translate import chat_options
from .usage import metrics_of, usage_of
from .wire import DONE, Document, EventStream, data_event, until_gone

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses=ERRORS | {200: {"content": stream_content(ChatChunk)}},
)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    call = Call.of(request, "chatcmpl-", body)
    chat = _Chat(call, body, conversation_of(call.server, body))
    if body.stream:
        return EventStream(chat.events(), lambda error: data_event(error.body()) + DONE)
    return Document(await until_gone(request, chat.answer()))


def conversation_of(state: ServerState, body: ChatRequest) -> Conversation:
    """What is asked, checked against what the model can do."""
    profile = state.chat
    variables = template_kwargs(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        if not profile.reads("reasoning_effort"):
            raise bad_field("reasoning_effort", "the chat template of this model does not read it")
        variables["reasoning_effort"] = body.reasoning_effort
    opens_turn = body.add_generation_prompt if body.add_generation_prompt is not None else True
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise bad_field("continue_final_message", "cannot be combined with add_generation_prompt")
        variables["continue_final_message"], opens_turn = True, False
    messages = template_messages(body.messages)
    return Conversation(profile, messages, tool_use(body), chat_options(body), variables, opens_turn).prepared()


def tool_use(body: ChatRequest) -> ToolUse:
    parallel = body.parallel_tool_calls is not False
    choice, tools = body.tool_choice, body.tools or ()
    if isinstance(choice, NamedTool):
        return ToolUse(tools, "named", choice.function.name, parallel)
    return ToolUse(tools, choice or "auto", None, parallel)


@dataclass
class _Chat:
    """One call of the route."""

    call: Call
    body: ChatRequest
    conversation: Conversation

    def _running(self) -> Any:
        conversation = self.conversation
        return running(
            self.call, [lambda: conversation.encode(self.call.llm)], conversation.wanted, conversation.markers
        )

    async def answer(self) -> dict[str, Any]:
        """The whole document."""
        async with self._running() as run:
            (output,) = await run.outputs()
        document = self._head("chat.completion")
        document["choices"] = [self._choice(choice, run.prompts[0]) for choice in output.outputs]
        document |= self._figures(output, run.prompts[0])
        if self.body.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_entries(output.prompt_logprobs)
        if self.body.return_token_ids:
            document["prompt_token_ids"] = list(output.prompt_token_ids)
        return document

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a stream."""
        async with self._running() as run:
            refuse_best_of(run.params)
            async for event in self._stream(run):
                yield event
        yield DONE

    async def _stream(self, run: Running) -> AsyncIterator[bytes]:
        options = self.body.stream_options
        stream = ChatStream(self.conversation, self.body, run.prompts[0], self.call.llm.frontend.decoder)
        usage = bool(options and options.include_usage)
        head = self._head("chat.completion.chunk")
        extra = {"usage": None} if usage else {}
        ended: dict[int, RequestOutput] = {}
        async for _, delta in run.deltas():
            if delta.output is not None:
                ended[delta.index] = delta.output
            choices = stream.choices(delta)
            last = len(ended) == run.params.samples
            for choice in choices[: -1 if last else None]:
                yield data_event({**head, "choices": [choice], **extra})
            if last:
                whole = RequestOutput.of_samples([ended[n] for n in sorted(ended)], run.params)
                figures = self._figures(whole, run.prompts[0])
                if not usage:
                    yield data_event({**head, "choices": choices[-1:], "metrics": figures["metrics"]})
                else:
                    yield data_event({**head, "choices": choices[-1:], **extra})
                    yield data_event({**head, "choices": [], **figures})

    def _head(self, kind: str) -> dict[str, Any]:
        call = self.call
        return {"id": call.id, "object": kind, "created": call.created, "model": call.model}

    def _figures(self, output: RequestOutput, prompt: Prompt) -> dict[str, Any]:
        counts = [self.conversation.reasoning_tokens(choice.token_ids, prompt) for choice in output.outputs]
        known = [count for count in counts if count is not None]
        reasoning = sum(known) if known else None
        return {
            "usage": usage_of(
                [output],
                prefix_cache=self.call.prefix_cache,
                prediction=self.body.prediction is not None,
                reasoning=reasoning,
            ),
            "metrics": metrics_of([output]),
        }

    def _choice(self, choice: CompletionOutput, prompt: Prompt) -> dict[str, Any]:
        answer = whole_answer(self.conversation.reader(prompt), choice.text)
        message: dict[str, Any] = {"role": ASSISTANT, "content": answer.text, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = self._calls(answer.calls)
        shown: dict[str, Any] = {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice),
            "finish_reason": "tool_calls" if answer.calls and choice.finish_reason == "stop" else choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            shown["token_ids"] = list(choice.token_ids)
        return shown

    def _calls(self, calls: Sequence[WrittenCall]) -> list[dict[str, Any]]:
        length = self.conversation.dialect.id_length if self.conversation.dialect else 24
        return [
            {"id": call_id(length), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]

    def _logprobs(self, choice: CompletionOutput) -> dict[str, Any] | None:
        if not self.body.logprobs or choice.logprobs is None:
            return None
        decoder = self.call.llm.frontend.decoder
        entries = chat_entries(choice.token_ids, choice.logprobs, self.body.top_logprobs or 0, decoder)
        return {"content": entries, "refusal": None}
