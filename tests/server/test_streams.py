"""Streams at the level of the protocol: callers that hang up or read slowly, and a server that is told to stop."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.server.kit import (
    HELLO,
    SPEC,
    Caller,
    Reciting,
    answer,
    app_over,
    chunks_of,
    joined_chat,
    listening,
    post,
    toy_engine,
)

from paceline.engine.outputs import RequestOutput, StreamDelta
from paceline.server.observe import Observer, Watched
from paceline.server.wire import EventStream
from paceline.testing.harness import leftovers
from paceline.testing.toy import ToyTarget

PATH = "/v1/chat/completions"
LONG: dict[str, Any] = {"messages": HELLO, "ignore_eos": True, "temperature": 1.0, "stream": True}


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        await asyncio.sleep(0.002)


def test_s32_two_hundred_callers_that_hang_up_leave_nothing_behind() -> None:
    chance = random.Random(3)

    async def main() -> None:
        with toy_engine() as engine:
            app = app_over(engine)

            async def one(number: int) -> None:
                body = LONG | {"max_tokens": 20, "seed": number, "n": 1 + number % 3}
                await Caller(app, PATH, body).run(leave_after=chance.randint(1, 24) if number % 5 else None)

            for start in range(0, 200, 40):
                await asyncio.gather(*(one(number) for number in range(start, start + 40)))
            await until(lambda: engine.info()["num_requests_running"] + engine.info()["num_requests_waiting"] == 0, 1.0)
            assert leftovers(engine) == [] and app.state.server.in_flight == 0
            text = await Caller(app, PATH, LONG | {"max_tokens": 12, "temperature": 0}).run()
            assert joined_chat(chunks_of(text))["finish_reason"] == "length"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_s32_hanging_up_before_the_first_token_ends_the_request(stream: bool) -> None:
    async def main() -> None:
        engine = Reciting("hi")
        engine.hold = threading.Event()
        app = app_over(engine)
        caller = Caller(app, PATH, {"messages": HELLO, "stream": stream, "n": 2})
        call = asyncio.create_task(caller.run())
        await until(lambda: len(engine.seen) == 2)
        caller.gone.set()
        await call
        await until(lambda: all(request.abort.reason == "the caller has gone" for request in engine.seen))
        assert app.state.server.in_flight == 0 and not caller.bodies[:-1]

    asyncio.run(main())


def test_a_slow_reader_holds_up_nobody_and_loses_nothing() -> None:
    async def main() -> None:
        with toy_engine("ngram") as engine:
            app = app_over(engine)
            slow = Caller(app, PATH, LONG | {"max_tokens": 400, "seed": 1})
            call = asyncio.create_task(slow.run())
            await until(lambda: bool(slow.bodies))
            slow.may_read.clear()
            for number in range(3):
                quick = await Caller(app, PATH, LONG | {"max_tokens": 50, "seed": number}).run()
                assert joined_chat(chunks_of(quick))["finish_reason"] == "length"
            await until(lambda: engine.info()["num_requests_running"] == 0)
            assert not call.done()  # the engine is through with it, its reader is not
            slow.may_read.set()
            chunks = chunks_of(await call)
            assert len(chunks) < 400  # what had waited came at once
            fresh = await Caller(app, PATH, LONG | {"max_tokens": 400, "seed": 1}).run()
            assert joined_chat(chunks) == joined_chat(chunks_of(fresh))

    asyncio.run(main())


class _Ear(Observer):
    """Keeps what it hears, and fails at it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int]] = []

    def on_request_start(self, request: Watched) -> None:
        self.heard.append(("start", request.id, request.prompt_tokens))

    def on_first_token(self, request: Watched, seconds: float) -> None:
        self.heard.append(("first", request.id, 0))

    def on_token(self, request: Watched, delta: StreamDelta, gap: float | None) -> None:
        self.heard.append(("token", request.id, len(delta.token_ids)))
        raise ValueError("an observer's own fault")

    def on_finish(self, request: Watched, output: RequestOutput, seconds: float) -> None:
        self.heard.append(("finish", request.id, output.metrics.completion_tokens))


@pytest.mark.parametrize("stream", [True, False])
def test_observers_hear_of_every_delivery_in_order_and_do_no_harm(stream: bool) -> None:
    async def main() -> None:
        with toy_engine() as engine:
            app = app_over(engine)
            ear = _Ear()
            app.state.server.observers.append(ear)
            body = LONG | {"max_tokens": 20, "n": 2, "stream": stream, "messages": HELLO}
            await Caller(app, PATH, body).run()
            kinds = [kind for kind, _, _ in ear.heard]
            assert kinds[:2] == ["start", "first"] and kinds.count("start") == kinds.count("first") == 1
            assert kinds.count("finish") == 2 and len({name for _, name, _ in ear.heard}) == 1
            assert sum(count for kind, _, count in ear.heard if kind == "token") == 40
            assert [count for kind, _, count in ear.heard if kind == "finish"] == [20, 20]

    asyncio.run(main())


def test_a_caller_that_takes_nothing_any_more_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "patience", 0.05)

    async def main() -> None:
        with toy_engine() as engine:
            app = app_over(engine)
            stuck = Caller(app, PATH, LONG | {"max_tokens": 900})
            stuck.may_read.clear()
            await asyncio.wait_for(stuck.run(), 5)
            await until(lambda: engine.info()["num_requests_running"] == 0)
            assert app.state.server.in_flight == 0 and leftovers(engine) == []

    asyncio.run(main())


def test_a_server_that_stops_lets_running_answers_end_and_takes_no_new_ones() -> None:
    engine = Reciting("the other people")
    engine.hold = threading.Event()
    app = app_over(engine, drain_timeout=10.0)
    found: list[dict[str, Any]] = []
    with httpx.Client(timeout=20) as client:
        with listening(app) as url:
            client.base_url = url  # type: ignore[assignment]
            worker = threading.Thread(target=lambda: found.append(answer(client, PATH, messages=HELLO)))
            worker.start()
            while not engine.seen:
                time.sleep(0.005)
            threading.Timer(0.3, engine.hold.set).start()
        worker.join()
    assert found[0]["choices"][0]["message"]["content"] == "the other people"
    assert engine.closed and app.state.server.health() == (False, "stopping")


def test_what_does_not_end_in_time_is_ended() -> None:
    engine = Reciting("the other people")
    engine.hold = threading.Event()
    found: list[int] = []
    with httpx.Client(timeout=20) as client:
        with listening(app_over(engine, drain_timeout=0.5)) as url:
            client.base_url = url  # type: ignore[assignment]
            worker = threading.Thread(target=lambda: found.append(post(client, PATH, messages=HELLO).status_code))
            worker.start()
            while not engine.seen:
                time.sleep(0.005)
        worker.join(5)
    assert engine.closed and found == [503]


def test_callers_of_what_does_not_end_in_time_are_told() -> None:
    target = ToyTarget(SPEC)
    target.before = lambda call: time.sleep(0.02)
    found: dict[bool, httpx.Response] = {}
    with toy_engine(target=target) as engine, httpx.Client(timeout=20) as client:
        with listening(app_over(engine, drain_timeout=0.5)) as url:
            client.base_url = url  # type: ignore[assignment]

            def ask(stream: bool) -> None:
                found[stream] = post(client, PATH, **LONG | {"stream": stream})

            workers = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
            for worker in workers:
                worker.start()
            while engine.info()["num_requests_running"] < 2:
                time.sleep(0.005)
        for worker in workers:
            worker.join(5)
    assert found[False].status_code == 503 and found[False].json()["error"]["code"] == "engine_closed"
    assert "x-request-id" in found[False].headers and found[False].headers["retry-after"]
    assert found[True].status_code == 200
    assert chunks_of(found[True].text)[-1]["error"]["code"] == "engine_closed"
