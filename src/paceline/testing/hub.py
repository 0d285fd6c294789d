"""A local stand-in for the model hub: serves directories on 127.0.0.1 with faults that tests switch on.

It speaks the few routes that ``huggingface_hub`` uses to look up and download files; it knows nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class HubFaults:
    """What goes wrong. File names are those of the served repositories.

    - ``delay``: seconds before any answer. ``missing``: files listed but answered with 404.
    - ``cut_once``: file -> bytes after which its first transfer breaks off. ``corrupt``: files served with one byte
      changed, their listed checksum unchanged. ``status``: HTTP status for every request instead of an answer.
    """

    delay: float = 0.0
    status: int | None = None
    missing: set[str] = field(default_factory=set)
    corrupt: set[str] = field(default_factory=set)
    cut_once: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HubRequest:
    """One request as it came in. ``start`` is the first byte asked for (0 = whole file)."""

    method: str
    path: str
    start: int


class HubStandIn:
    """A running stand-in. ``endpoint`` is its address; ``requests`` everything it was asked, in order."""

    def __init__(self) -> None:
        self.faults = HubFaults()
        self.requests: list[HubRequest] = []
        self._commits: dict[str, dict[str, Path]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def publish(self, repo: str, directory: Path, revision: str = "main") -> str:
        """Serve ``directory`` as ``repo`` at ``revision`` (branch or tag); returns the commit hash it got."""
        files = {p.relative_to(directory).as_posix(): p for p in sorted(directory.rglob("*")) if p.is_file()}
        digest = hashlib.sha1(repo.encode(), usedforsecurity=False)
        for name, path in files.items():
            digest.update(name.encode() + path.read_bytes())
        commit = digest.hexdigest()
        self._commits[commit] = files
        self._names[repo, revision] = self._names[repo, commit] = commit
        return commit

    def close(self) -> None:
        """Stop answering: afterwards connections are refused."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def knows(self, repo: str) -> bool:
        return any(name == repo for name, _ in self._names)

    def commit_of(self, repo: str, revision: str) -> str | None:
        return self._names.get((repo, revision))

    def files_at(self, commit: str) -> dict[str, Path]:
        return self._commits[commit]

    def pause(self) -> None:
        """Wait out the configured delay, or until the stand-in closes."""
        if self.faults.delay:
            self._closing.wait(self.faults.delay)


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """A stand-in for the time of a ``with`` block."""
    hub = HubStandIn()
    try:
        yield hub
    finally:
        hub.close()


class _Refused(Exception):
    """Answer with ``status`` and the hub's own error code."""

    def __init__(self, status: HTTPStatus | int, code: str) -> None:
        super().__init__(code)
        self.status = int(status)
        self.code = code


def _handler_for(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        stand_in = hub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    stand_in: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read :attr:`HubStandIn.requests` instead."""

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        self.stand_in.requests.append(HubRequest(self.command, path, self._first_byte()))
        self.stand_in.pause()
        try:
            if self.stand_in.faults.status is not None:
                raise _Refused(self.stand_in.faults.status, "Unavailable")
            if path.startswith("/api/models/"):
                self._send_json(self._describe(path.removeprefix("/api/models/"), parse_qs(address.query)))
            else:
                self._send_file(path.lstrip("/"))
        except _Refused as refusal:
            self._send_error(refusal)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up waiting

    def _first_byte(self) -> int:
        span = self.headers.get("Range", "")
        return int(span.removeprefix("bytes=").split("-")[0]) if span.startswith("bytes=") else 0

    def _resolve(self, repo: str, revision: str) -> str:
        if not self.stand_in.knows(repo):
            raise _Refused(HTTPStatus.NOT_FOUND, "RepoNotFound")
        commit = self.stand_in.commit_of(repo, revision)
        if commit is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        return commit

    def _describe(self, path: str, query: dict[str, list[str]]) -> Any:
        """Model information, or the file tree of a commit."""
        for marker in ("/revision/", "/tree/"):
            if marker in path:
                repo, revision = path.split(marker, 1)
                break
        else:
            repo, revision, marker = path, "main", ""
        commit = self._resolve(repo, revision)
        files = self.stand_in.files_at(commit)
        if marker == "/tree/":
            return [{"type": "file", "path": name} | _blob(file) for name, file in files.items()]
        with_sizes = "blobs" in query
        siblings = [{"rfilename": name} | (_blob(file) if with_sizes else {}) for name, file in files.items()]
        return {"id": repo, "modelId": repo, "sha": commit, "private": False, "siblings": siblings}

    def _send_file(self, path: str) -> None:
        if "/resolve/" not in path:
            raise _Refused(HTTPStatus.NOT_FOUND, "RepoNotFound")
        repo, rest = path.split("/resolve/", 1)
        revision, _, name = rest.partition("/")
        commit = self._resolve(repo, revision)
        file = self.stand_in.files_at(commit).get(name)
        if file is None or name in self.stand_in.faults.missing:
            raise _Refused(HTTPStatus.NOT_FOUND, "EntryNotFound")
        content = file.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        if name in self.stand_in.faults.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = self._first_byte()
        self.send_response(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send_content(name, content[start:])

    def _send_content(self, name: str, content: bytes) -> None:
        cut = self.stand_in.faults.cut_once.pop(name, None)
        if cut is None:
            self.wfile.write(content)
            return
        self.wfile.write(content[:cut])
        self.wfile.flush()
        self.close_connection = True

    def _send_json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _send_error(self, refusal: _Refused) -> None:
        self.send_response(refusal.status)
        self.send_header("X-Error-Code", refusal.code)
        self.send_header("X-Error-Message", refusal.code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _blob(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    blob: dict[str, Any] = {"size": len(content), "oid": checksum[:40], "blobId": checksum[:40]}
    if file.suffix == ".safetensors":
        blob["lfs"] = {"oid": checksum, "sha256": checksum, "size": len(content), "pointerSize": 134}
    return blob
