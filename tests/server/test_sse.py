"""A client that reads the socket itself: status line, headers and frames of a stream as they come over the wire."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.conftest import Served
from tests.server.kit import HELLO


def exchange(url: str, path: str, body: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers, and the body with its chunked framing taken off."""
    place = urlsplit(url)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
        wire.sendall(f"{head}Connection: close\r\n\r\n".encode() + content)
        received = b""
        while part := wire.recv(65536):
            received += part
    shown, _, rest = received.partition(b"\r\n\r\n")
    status, *lines = shown.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return status, headers, _unchunked(rest) if headers.get("transfer-encoding") == "chunked" else rest


def _unchunked(framed: bytes) -> bytes:
    whole = b""
    while framed:
        size, _, framed = framed.partition(b"\r\n")
        whole += framed[: int(size, 16)]
        framed = framed[int(size, 16) + 2 :]
    return whole


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_frames_of_a_stream(served: Served, path: str) -> None:
    asked: dict[str, Any] = {"messages": HELLO} if "chat" in path else {"prompt": "the"}
    status, headers, body = exchange(served.url, path, asked | {"stream": True, "max_tokens": 20, "seed": 1})
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-type"].startswith("text/event-stream") and headers["cache-control"] == "no-cache"
    assert "x-request-id" in headers and "content-length" not in headers
    frames = body.split(b"\n\n")
    assert frames[-1] == b"" and frames[-2] == b"data: [DONE]"
    for frame in frames[:-2]:
        assert frame.startswith(b"data: {") and b"\n" not in frame
        json.loads(frame[6:].decode("utf-8"))


def test_a_refusal_has_a_status_of_its_own(served: Served) -> None:
    status, headers, body = exchange(served.url, "/v1/completions", {"prompt": "a", "stream": True, "top_p": 2})
    assert status.startswith("HTTP/1.1 400") and headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["param"] == "top_p"
