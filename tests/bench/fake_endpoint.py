"""An endpoint by script: raw HTTP on a thread of its own, so that every fault of a server can be shown."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

_REASONS = {200: "OK", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True)
class Reply:
    """``parts``: network writes of a stream; ``cut``: the connection breaks behind them; ``delay``: seconds before.

    ``hold``: nothing is sent until so many requests have been open at once.
    """

    parts: list[bytes] = field(default_factory=list)
    status: int = 200
    cut: bool = False
    delay: float = 0.0
    hold: int = 0


def event(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


DONE = event(b"[DONE]")


def chunk(text: str, **more: Any) -> bytes:
    """One delivery of a chat stream."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}], **more})


def usage(tokens: int, spec: dict[str, Any] | None = None) -> bytes:
    """The last chunk."""
    counts = {"prompt_tokens": 3, "completion_tokens": tokens}
    metrics = {} if spec is None else {"metrics": {"speculative_decoding": spec}}
    return event({"choices": [], "usage": counts, **metrics})


def answer(*texts: str, tokens: int | None = None, spec: dict[str, Any] | None = None, hold: int = 0) -> Reply:
    """A stream as it should be: a role, texts, usage, the end."""
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    count = len(texts) if tokens is None else tokens
    return Reply([role, *(chunk(text) for text in texts), usage(count, spec), DONE], hold=hold)


class FakeEndpoint:
    """``seen``: bodies in order; ``left``: requests whose caller hung up; ``most``: requests at once."""

    def __init__(self, script: Callable[[dict[str, Any]], Reply]) -> None:
        self._script = script
        self.seen: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.left = threading.Semaphore(0)
        self.most = 0
        self._open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = await reader.readexactly(_length(head))
                if not await self._answer(head, body, writer):
                    break
        writer.close()

    async def _answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        self.headers.append(head)
        if head.startswith("GET"):
            known = head.startswith("GET /v1/models ")
            _plain(writer, 200 if known else 404, json.dumps({"data": [{"id": "the-model"}]}).encode())
            return True
        asked = json.loads(body)
        self.seen.append(asked)
        reply = self._script(asked)
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            await asyncio.sleep(reply.delay)
            while self.most < reply.hold:
                await asyncio.sleep(0.005)
            return await self._stream(reply, writer)
        except ConnectionError:
            self.left.release()
            raise
        finally:
            self._open -= 1

    async def _stream(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.status != 200:
            _plain(writer, reply.status, b'{"error": {"message": "the queue is full"}}')
            return True
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head)
        for part in reply.parts:
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.002)
        if not reply.cut:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not reply.cut


def _length(head: str) -> int:
    """Bytes of the body that the head announces."""
    lines = [line.lower().partition(":") for line in head.splitlines()]
    return sum(int(value) for name, _, value in lines if name == "content-length")


def _plain(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


@contextmanager
def running(script: Callable[[dict[str, Any]], Reply]) -> Iterator[FakeEndpoint]:
    """The endpoint on a free port of this machine, until the block ends."""
    endpoint = FakeEndpoint(script)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(endpoint.serve, "127.0.0.1", 0))
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
