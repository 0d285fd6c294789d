"""``/tokenize`` and ``/detokenize``: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..engine.async_llm import AsyncLLM
from .conversation import Conversation, ToolUse
from .documented import ERRORS
from .errors import ApiError, bad_field, model_not_found
from .messages import template_kwargs, template_messages
from .schemas_text import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from .serving import beside
from .state import ServerState
from .translate import Wanted
from .wire import Document

router = APIRouter()


@router.post("/tokenize", response_model=TokenizeAnswer, responses=ERRORS)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text, or of messages under the chat template."""
    state, llm = _engine(request, body.model)
    ids = await beside(state, lambda: _encode(state, llm, body))
    info = llm.info()
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": int(min(info["max_model_len"], info["kv_cache_tokens"])),
        "tokens": ids,
    }
    decoder = llm.frontend.decoder
    if body.return_token_strs and decoder is not None:
        answer["token_strs"] = [decoder.text_of(token) for token in ids]
    return Document(answer)


@router.post("/detokenize", response_model=DetokenizeAnswer, responses=ERRORS)
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids, special tokens left out."""
    state, llm = _engine(request, body.model)
    decoder = llm.frontend.decoder
    if decoder is None:
        raise bad_field("tokens", "this server runs without a tokenizer")
    for token in body.tokens:
        if not 0 <= token < 2**31:
            raise bad_field("tokens", f"{token} is no token id")
    return Document({"prompt": await beside(state, lambda: decoder.decode(body.tokens))})


def _engine(request: Request, model: str | None) -> tuple[ServerState, AsyncLLM]:
    state: ServerState = request.app.state.server
    llm = state.engine
    if model is not None and model not in state.names:
        raise model_not_found(model, state.names)
    return state, llm


def _encode(state: ServerState, llm: AsyncLLM, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        if llm.tokenizer is None:
            raise ApiError(400, "prompt: this server runs without a tokenizer", param="prompt")
        special = True if body.add_special_tokens is None else body.add_special_tokens
        return [int(token) for token in llm.tokenizer.encode(body.prompt, add_special_tokens=special)]
    if body.add_special_tokens is not None:
        raise bad_field("add_special_tokens", "goes with prompt; a chat template brings its own")
    variables = template_kwargs(body.chat_template_kwargs)
    if body.continue_final_message:
        variables["continue_final_message"] = True
    opens = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    use = ToolUse(body.tools or ())
    messages = template_messages(body.messages or ())
    conversation = Conversation(state.chat, messages, use, Wanted({}), variables, opens).prepared()
    return list(conversation.encode(llm).ids)
