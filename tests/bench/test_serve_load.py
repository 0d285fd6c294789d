"""The load on a server: a short one on a tiny model, where every row and block comes back, and the verdict by hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.serve_bare import bare_rate
from paceline.bench.serve_client import Answer
from paceline.bench.serve_load import LoadSettings, Observed, faults, report, under_load
from paceline.core.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.engine import Engine
from paceline.testing.models import tiny_model

_ENGINE: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 3, "spec_method": "ngram"}


class _Local:
    """A server of this process in place of one of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def check(self) -> None: ...

    def resident(self) -> int:
        return 7


@contextmanager
def _server(model: str) -> Iterator[_Local]:
    import uvicorn

    from paceline.server.app import create_app
    from paceline.server.settings import ServerSettings

    app = create_app(AsyncLLM(model, **_ENGINE), ServerSettings(served_model_name=("tiny",)))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield _Local(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "one two one two"}\n{"prompt": "and the and the"}\n', "utf-8")
    return str(path)


def test_a_short_load_leaves_nothing_behind(prompts: str) -> None:
    settings = LoadSettings(
        model="tiny", streams=3, seconds=0.5, disconnects=9, leavers=3, stayers=2, max_tokens=24, prompts=prompts
    )
    with _server(str(tiny_model("llama"))) as server:
        found = asyncio.run(under_load(settings, server))  # type: ignore[arg-type]
    assert [answer.message for answer in (*found.steady, *found.stayed, *found.left) if answer.error] == []
    assert {answer.tokens for answer in found.steady} == {24}
    assert found.tokens > 0
    assert sum(answer.left for answer in found.left) == 9
    assert found.stayed
    assert found.at_rest == {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}
    document = report(settings, found, [None, None])
    assert (document["exactness"], document["stayers_differ"], document["overhead"]) == ("bitwise", 0, None)


def test_the_bare_engine_under_the_same_load() -> None:
    engine = Engine.build(EngineConfig.build(model=str(tiny_model("llama")), **_ENGINE))
    options = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    try:
        found = bare_rate(engine, ["one two", "and the"], options, (4, 0.2))
    finally:
        engine.close()
    assert found["requests"] > 0
    assert found["tokens_per_second"] == found["tokens"] / found["seconds"] > 0


def _answer(place: int, text: str, **more: Any) -> Answer:
    return Answer(place, 10.0, 10.0, 12.0, [10.5, 11.0, 12.0], text, 8, 3, **more)


def _observed(**more: Any) -> Observed:
    steady = [_answer(0, "a"), _answer(1, "b"), _answer(2, "a")]
    left = [_answer(9, "", left=True), _answer(10, "", left=True)]
    stayed = [_answer(4, "a"), _answer(5, "b")]
    usual: dict[str, Any] = {"exactness": "bitwise", "prompts": 2, "at_rest": {"kv": 0.0}, "resident": [9] * 8}
    counted = {"steady": steady, "seconds": 2.0, "tokens": 190.0, "left": left, "stayed": stayed}
    return Observed(**(counted | usual | more))


def _faults(observed: Observed, bare: float = 100.0) -> list[str]:
    settings = LoadSettings(disconnects=2)
    return faults(report(settings, observed, [{"tokens_per_second": bare - 5}, {"tokens_per_second": bare + 5}]))


def test_nothing_is_wrong_with_a_clean_run() -> None:
    assert _faults(_observed()) == []


def test_figures_by_hand() -> None:
    found = report(LoadSettings(), _observed(), [{"tokens_per_second": 100.0}, None])
    assert (found["tokens_per_second"], found["overhead"]) == (95.0, pytest.approx(0.05))
    assert (found["median_ttft_ms"], found["max_over_median_ttft"], found["max_itl_ms"]) == (500.0, 1.0, 1000.0)


@pytest.mark.parametrize(
    ("more", "bare", "words"),
    [
        ({"steady": [_answer(0, "a"), _answer(1, "b", error="cut")]}, 100.0, "1 requests: cut"),
        ({"resident": [0] * 6 + [2**30] * 2}, 100.0, "resident memory grew by"),
        ({}, 110.0, "the server costs 13.6% of the bare engine's speed"),
        ({"left": [_answer(9, "", left=True)]}, 100.0, "only 1 callers could hang up"),
        ({"stayed": [_answer(4, "b")]}, 100.0, "1 answers changed while others hung up"),
        ({"at_rest": {"kv_cache_usage_perc": 0.1}}, 100.0, "not everything came back"),
        ({"steady": [_answer(0, "a")] * 9 + [Answer(1, -40.0, 0, 1, [10.5], "b", 8, 3)]}, 100.0, "a request waited"),
    ],
)
def test_each_fault_is_named(more: dict[str, Any], bare: float, words: str) -> None:
    (found,) = _faults(_observed(**more), bare)
    assert words in found
