"""``python -m paceline.bench.serve_load``: a server under many streams for minutes, then under callers who hang up.

Reports errors, memory, waiting, what disconnects leave behind, and the overhead over the bare engine, which is measured
before and after with the same settings and requests. Exit status 1 if anything is wrong. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from ..core import env
from ..core.errors import ConfigError, PacelineError
from .memory_soak import growth
from .serve_client import Answer, Ask, Client, Endpoint, open_client
from .workloads import read_workload

#: A request that waits for nothing but its turn may wait this many times as long as the median one.
_STARVED = 20.0
_MAX_GROWTH = 8 * 2**20
_MAX_OVERHEAD = 0.10


@dataclass(frozen=True)
class LoadSettings:
    """``threads``: of the tensor library, the rest of the machine serves HTTP and the client. ``bare_seconds``: of the
    engine alone, before and after; 0 leaves it out. ``leavers``: callers at once who hang up, beside ``stayers``."""

    model: str = "demo"
    dtype: str = "auto"
    method: str = "auto"
    streams: int = 64
    seconds: float = 300.0
    bare_seconds: float = 60.0
    disconnects: int = 200
    leavers: int = 16
    stayers: int = 8
    threads: int = 1
    max_tokens: int = 64
    prompts: str = "copy"
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """Of every request: its length is fixed, so that both sides generate the same."""
        return {"max_tokens": self.max_tokens, "temperature": 0.0, "ignore_eos": True}

    @property
    def engine(self) -> dict[str, Any]:
        """Settings of the engine on both sides."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "spec_method": self.method,
            "num_threads": self.threads,
            "max_num_seqs": self.streams,
        }

    @property
    def flags(self) -> list[str]:
        words = {name: value for name, value in self.engine.items() if name != "model"}
        return [part for name, value in words.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@dataclass
class Observed:
    """What the load showed. ``resident``: bytes of the server's process, once a second; ``prompts``: how many
    different ones there are, a request's is its place modulo that."""

    steady: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    tokens: float = 0.0
    resident: list[int] = field(default_factory=list)
    left: list[Answer] = field(default_factory=list)
    stayed: list[Answer] = field(default_factory=list)
    at_rest: dict[str, float] = field(default_factory=dict)
    exactness: str = ""
    prompts: int = 1


class Server:
    """``paceline serve`` in a process of its own, which writes to ``log``."""

    def __init__(self, settings: LoadSettings, log: IO[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = ["serve", settings.model, "--port", str(self.port), "--log-interval", "0", *settings.flags]
        self._log = log
        self.process = _paceline(["paceline", *words], stderr=log)

    def resident(self) -> int:
        """Bytes of the process in memory."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    def check(self) -> None:
        """Raise what it said last if it has ended."""
        if self.process.poll() is not None:
            self._log.seek(0)
            lines = self._log.read().splitlines()[-5:]
            raise PacelineError(f"the server ended with status {self.process.returncode}: " + "; ".join(lines))

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30.0)
        self.process.kill()
        self.process.wait()


def _paceline(words: Sequence[str], **how: Any) -> subprocess.Popen[str]:
    """A module of this package in a fresh process."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": None, **how}
    return subprocess.Popen([sys.executable, "-m", *words], env=env.child_environment(), text=True, **quiet)


def bare(settings: LoadSettings) -> dict[str, Any] | None:
    """The engine alone, in a process of its own."""
    if not settings.bare_seconds:
        return None
    words = ["paceline.bench.serve_bare", "--settings", json.dumps(settings.engine), "--prompts", settings.prompts]
    words += ["--options", json.dumps(settings.options), "--streams", str(settings.streams)]
    process = _paceline([*words, "--seconds", str(settings.bare_seconds)], stdout=subprocess.PIPE)
    out, _ = process.communicate()
    if process.returncode:
        raise PacelineError(f"the bare engine ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


class Load:
    """The client's side of one run."""

    def __init__(self, settings: LoadSettings, server: Server, client: Client) -> None:
        self._settings = settings
        self._server = server
        self._client = client
        self._endpoint = Endpoint(f"http://127.0.0.1:{server.port}", settings.model)
        self._texts = [prompt.text for prompt in read_workload(settings.prompts)]
        self._generator = random.Random(settings.seed)
        self._number = 0

    async def run(self) -> Observed:
        found = Observed(prompts=len(self._texts))
        await self._ready()
        shown = await self._client.get(self._endpoint, "/dashboard/data.json")
        found.exactness = str(shown["server"]["exactness"])
        await self._steady(found)
        await self._hang_up(found)
        await self._rest(found)
        return found

    def _next(self) -> Ask:
        self._number += 1
        return Ask(self._number, self._texts[self._number % len(self._texts)], self._settings.options)

    async def _ready(self) -> None:
        while True:
            self._server.check()
            try:
                await self._client.get(self._endpoint, "/health")
                return
            except ConfigError:  # it loads
                await asyncio.sleep(0.5)

    async def _steady(self, found: Observed) -> None:
        """All streams busy until the time is up; tokens are counted by the engine between two moments inside."""
        begun: asyncio.Queue[None] = asyncio.Queue()
        over = asyncio.Event()

        async def stream() -> None:
            await self._client.ask(self._endpoint, self._next())
            begun.put_nowait(None)
            while not over.is_set():
                found.steady.append(await self._client.ask(self._endpoint, self._next()))

        streams = [asyncio.create_task(stream()) for _ in range(self._settings.streams)]
        for _ in streams:
            await begun.get()
        began, before = time.monotonic(), await self._metric("generation_tokens_total")
        while time.monotonic() < began + self._settings.seconds:
            found.resident.append(self._server.resident())
            await asyncio.sleep(1.0)
        found.tokens = await self._metric("generation_tokens_total") - before
        found.seconds = time.monotonic() - began
        over.set()
        await asyncio.gather(*streams)

    async def _hang_up(self, found: Observed) -> None:
        """Callers who leave after a few deliveries, beside others who stay and must not notice."""
        over, leaving = asyncio.Event(), 0

        async def stay() -> None:
            while not over.is_set():
                found.stayed.append(await self._client.ask(self._endpoint, self._next()))

        async def leave() -> None:
            nonlocal leaving
            while sum(answer.left for answer in found.left) + leaving < self._settings.disconnects:
                leaving += 1
                after = self._generator.randrange(8)
                found.left.append(await self._client.ask(self._endpoint, self._next(), leave_after=after))
                leaving -= 1

        stayers = [asyncio.create_task(stay()) for _ in range(self._settings.stayers)]
        await asyncio.gather(*(leave() for _ in range(self._settings.leavers)))
        over.set()
        await asyncio.gather(*stayers)

    async def _rest(self, found: Observed) -> None:
        """Give the server two seconds to notice the last ones, then look at what it still holds."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        for _ in range(20):
            found.at_rest = {name: await self._metric(name) for name in names}
            if not any(found.at_rest.values()):
                return
            await asyncio.sleep(0.1)

    async def _metric(self, name: str) -> float:
        text = str(await self._client.get(self._endpoint, "/metrics"))
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"paceline:{name} "))


async def under_load(settings: LoadSettings, server: Server) -> Observed:
    """The whole run against a server that starts."""
    async with open_client(timeout=600.0) as client:
        return await Load(settings, server, client).run()


def report(settings: LoadSettings, found: Observed, bares: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Figures, and ``faults``: what is wrong, in words."""
    firsts = sorted(answer.first_seconds for answer in found.steady if answer.first_seconds is not None)
    gaps = [gap for answer in found.steady for gap in answer.gaps]
    alone = [entry["tokens_per_second"] for entry in bares if entry is not None]
    served = found.tokens / found.seconds
    document: dict[str, Any] = {
        "bench": "serve_load",
        "settings": settings.__dict__,
        "cores": os.cpu_count(),
        "requests": len(found.steady),
        "errors": dict(Counter(a.error for a in (*found.steady, *found.stayed, *found.left) if a.error is not None)),
        "tokens_per_second": served,
        "bare_tokens_per_second": alone,
        "overhead": 1.0 - served / statistics.fmean(alone) if alone else None,
        "median_ttft_ms": 1e3 * statistics.median(firsts),
        "max_ttft_ms": 1e3 * firsts[-1],
        "max_over_median_ttft": firsts[-1] / statistics.median(firsts),
        "max_itl_ms": 1e3 * max(gaps, default=0.0),
        "resident_bytes": found.resident[:: max(1, len(found.resident) // 12)],
        "growth_bytes": growth(found.resident) if found.resident else 0,
        "disconnects": sum(answer.left for answer in found.left),
        "stayers_answers": len(found.stayed),
        "stayers_differ": _differing(found),
        "exactness": found.exactness,
        "at_rest": found.at_rest,
    }
    return document | {"faults": faults(document)}


def _differing(found: Observed) -> int:
    """Answers beside the disconnects whose text is not that of the same prompt under steady load."""
    texts = {answer.place % found.prompts: answer.text for answer in found.steady if answer.ok}
    stayed = [(answer.place % found.prompts, answer.text) for answer in found.stayed if answer.ok]
    return sum(texts.get(prompt, text) != text for prompt, text in stayed)


def faults(document: dict[str, Any]) -> list[str]:
    """What does not hold."""
    found = [f"{count} requests: {kind}" for kind, count in document["errors"].items()]
    if document["growth_bytes"] > _MAX_GROWTH:
        found.append(f"resident memory grew by {document['growth_bytes'] / 2**20:.1f} MiB")
    if document["max_over_median_ttft"] > _STARVED:
        found.append(f"a request waited {document['max_over_median_ttft']:.0f} times the median for its first token")
    if document["overhead"] is not None and document["overhead"] > _MAX_OVERHEAD:
        found.append(f"the server costs {document['overhead']:.1%} of the bare engine's speed")
    if document["disconnects"] < document["settings"]["disconnects"]:
        found.append(f"only {document['disconnects']} callers could hang up")
    if document["stayers_differ"] and document["exactness"] == "bitwise":
        found.append(f"{document['stayers_differ']} answers changed while others hung up")
    if any(document["at_rest"].values()):
        found.append(f"not everything came back: {document['at_rest']}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.serve_load", description=__doc__)
    for name, default in LoadSettings().__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    settings = LoadSettings(**vars(parser.parse_args(arguments)))
    before = bare(settings)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        server = Server(settings, log)
        try:
            found = asyncio.run(under_load(settings, server))
        finally:
            server.stop()
    document = report(settings, found, [before, bare(settings)])
    for name, value in document.items():
        print(f"{name}: {value}")
    print(json.dumps(document))
    return 1 if document["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
