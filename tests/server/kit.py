"""Servers for tests: a toy model or a reciting engine behind the real app, in the process or on a real port."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.testclient import TestClient
from tests.engine.fake_engine import FakeEngine
from tests.support.features import EOS, VOCAB, make_drafter

from paceline.engine.async_llm import AsyncLLM
from paceline.engine.build import assemble
from paceline.engine.engine import Engine
from paceline.server.app import create_app
from paceline.server.run import Listener, bind
from paceline.server.settings import ServerSettings
from paceline.testing.features import FeatureDecoder
from paceline.testing.harness import Setup
from paceline.testing.tokenizer import build_tokenizer
from paceline.testing.toy import ToySpec, ToyTarget

MODEL = "toy"
SPEC = ToySpec(vocab_size=VOCAB, max_model_len=1024)
HERMES_TEMPLATE = """{% if tools %}Tools, called by <tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}\
{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if thinking %}<think>
{% endif %}{% endif %}"""
LLAMA_TEMPLATE = HERMES_TEMPLATE.replace("<tool_call>", "<|python_tag|>").replace("</tool_call>", "")
MISTRAL_TEMPLATE = HERMES_TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")
HELLO = [{"role": "user", "content": "Hello there"}]


@functools.cache
def tokenizer(template: str = HERMES_TEMPLATE, special: tuple[str, ...] = ()) -> Any:
    """The byte-level tokenizer with the markers of thinking blocks; ``special``: special tokens behind them."""
    from tokenizers import AddedToken

    made = build_tokenizer()
    made.add_tokens(["<think>", "</think>"])
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in special], special_tokens=True)
    made.chat_template = template
    return made


@functools.cache
def decoder() -> FeatureDecoder:
    """Plain decoding of the toy model, which answers are compared with."""
    return FeatureDecoder(
        ToyTarget(SPEC).next_logits,
        tokenizer(),
        eos_ids=EOS,
        max_model_len=SPEC.max_model_len,
        vocab_size=SPEC.vocab_size,
    )


@contextmanager
def toy_engine(drafter: str = "ngram", *, rows: int = 8, target: ToyTarget | None = None) -> Iterator[Engine]:
    """A running engine over the toy model."""
    setup = Setup(rows=rows, chunk=16, depth=4)
    engine = assemble(
        setup.config(), target or ToyTarget(SPEC), EOS, drafter=make_drafter(drafter, decoder()), tokenizer=tokenizer()
    )
    try:
        yield engine
    finally:
        engine.close()


def settings(**values: Any) -> ServerSettings:
    return ServerSettings(**({"served_model_name": (MODEL,), "log_interval": 0.0, "port": 0} | values))


def app_over(engine: Any, **values: Any) -> Any:
    """The app over an engine; it closes the engine when it ends."""
    return create_app(AsyncLLM.from_engine(engine), settings(**values))


@contextmanager
def in_process(engine: Any, **values: Any) -> Iterator[TestClient]:
    """A client of an app in this process."""
    with TestClient(app_over(engine, **values), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """A real server on a port of its own; its address."""
    chosen = app.state.server.settings
    bound = bind(chosen)
    listener = Listener(app, chosen)
    thread = threading.Thread(target=listener.run, args=([bound],), daemon=True)
    thread.start()
    while not listener.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        listener.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


class Reciting(FakeEngine):
    """Answers every request with one text, in bursts of the given sizes."""

    def __init__(
        self, text: str, bursts: Sequence[int] = (), *, special: tuple[str, ...] = (), template: str = ""
    ) -> None:
        words = tokenizer(template or HERMES_TEMPLATE, special)
        super().__init__(tuple(words.encode(text, add_special_tokens=False)), tokenizer=words, bursts=bursts)

    def info(self) -> dict[str, Any]:
        return super().info() | {"model": MODEL, "closed": self.closed, "max_model_len": 4096, "kv_cache_tokens": 4096}


class Caller:
    """One call of an ASGI app, whose reader decides when it takes an event and when it hangs up."""

    def __init__(self, app: Any, path: str, body: dict[str, Any] | bytes) -> None:
        self._app = app
        self._path = path
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._sent = [{"type": "http.request", "body": content, "more_body": False}]
        self.gone = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.bodies: list[bytes] = []
        self.status = 0

    async def run(self, leave_after: int | None = None) -> str:
        """Until the answer ends; hangs up after so many events."""
        self._leave_after = leave_after
        assert self._app.state.server.phase == "ready"
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": self._path, "raw_path": b"", "query_string": b""}
        await self._app(scope | {"headers": headers, "root_path": ""}, self._receive, self._send)
        return b"".join(self.bodies).decode()

    async def _receive(self) -> dict[str, Any]:
        if self._sent:
            return self._sent.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self.may_read.wait()
        self.bodies.append(message.get("body", b""))
        if self._leave_after is not None and len(self.bodies) >= self._leave_after:
            self.gone.set()


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which must end with ``[DONE]`` and hold nothing else."""
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined_chat(chunks: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """One choice of a stream, put together as clients do."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None, "scores": []}
    for choice in (each for chunk in chunks for each in chunk["choices"] if each["index"] == index):
        delta = choice["delta"]
        whole["content"] += delta.get("content") or ""
        whole["reasoning"] += delta.get("reasoning_content") or ""
        whole["scores"] += (choice.get("logprobs") or {}).get("content") or []
        for call in delta.get("tool_calls") or []:
            if "id" in call:
                assert call["index"] == len(whole["calls"]) and call["type"] == "function"
                whole["calls"].append([call["function"]["name"], ""])
            whole["calls"][call["index"]][1] += call["function"]["arguments"]
        assert whole["finish_reason"] is None
        whole["finish_reason"] = choice["finish_reason"]
    return whole


def post(client: httpx.Client, path: str, **body: Any) -> httpx.Response:
    """A body as it stands, whatever its values are."""
    return client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


def answer(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = post(client, path, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def error(client: httpx.Client, path: str, status: int, **body: Any) -> dict[str, Any]:
    """The error of a refused body, in OpenAI's shape."""
    response = post(client, path, **body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    assert found.keys() == {"error"} and found["error"].keys() == {"message", "type", "param", "code"}
    return dict(found["error"])
