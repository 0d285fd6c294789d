"""The client of the load benchmark: events from any cut of the bytes, tokens by usage, every fault under its kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.fake_endpoint import DONE, FakeEndpoint, Reply, answer, chunk, event, running, usage

from paceline.bench.serve_client import Answer, Ask, Endpoint, open_client
from paceline.bench.serve_sse import SseParser

_STREAM = (
    'data: {"a": "é \u2028 안"}\n\n: a comment\n\n'
    "event: x\r\ndata: one\r\ndata:two\r\n\r\ndata: three\r\rdata\n\ndata: end\n\n"
)
_EVENTS = ['{"a": "é \u2028 안"}', "one\ntwo", "three", "", "end"]


def _cuts(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.integers(0, 120), max_size=30))
def test_events_do_not_depend_on_how_the_network_cut_them(places: list[int]) -> None:
    parser = SseParser()
    assert [found for part in _cuts(_STREAM.encode(), places) for found in parser.feed(part)] == _EVENTS
    assert not parser.pending


def test_a_reader_of_parts_as_events_would_be_caught() -> None:
    parts = _cuts(_STREAM.encode(), [5])
    naive = [line[6:] for part in parts for line in part.decode().splitlines() if line.startswith("data: ")]
    assert naive != _EVENTS


def test_an_event_without_its_end_is_pending() -> None:
    parser = SseParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.pending


def _ask(endpoint: FakeEndpoint, timeout: float = 20.0, leave_after: int | None = None, **how: Any) -> Answer:
    async def send() -> Answer:
        async with open_client(timeout) as client:
            target = Endpoint(endpoint.url, "m", **how)
            return await client.ask(target, Ask(4, "hello", {"max_tokens": 9}), leave_after=leave_after)

    return asyncio.run(send())


def test_tokens_are_those_of_usage_and_deliveries_are_not_counted() -> None:
    spec = {"num_draft_tokens": 4}
    with running(lambda body: answer("one two", " three", tokens=7, spec=spec)) as endpoint:
        found = _ask(endpoint)
    assert (found.error, found.text, found.tokens, found.prompt_tokens) == (None, "one two three", 7, 3)
    assert (found.place, len(found.deliveries), found.spec) == (4, 2, spec)
    assert found.seconds_per_token == pytest.approx((found.deliveries[1] - found.deliveries[0]) / 6)
    body = endpoint.seen[0]
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 9, True)


def test_several_events_in_one_read_are_one_delivery() -> None:
    with running(lambda body: Reply([chunk("a") + chunk("b"), chunk("c") + usage(3) + DONE])) as endpoint:
        found = _ask(endpoint)
    assert (found.text, len(found.deliveries), len(found.gaps)) == ("abc", 2, 1)


def test_completions_keys_and_extra_fields() -> None:
    text = event({"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]})
    with running(lambda body: Reply([text, usage(1), DONE])) as endpoint:
        found = _ask(endpoint, api="completions", api_key="secret", extra={"top_k": 3})
    assert (found.text, found.finish_reason, found.error) == ("yes", "stop", None)
    assert endpoint.seen[0]["prompt"] == "hello"
    assert endpoint.seen[0]["top_k"] == 3
    assert "POST /v1/completions " in endpoint.headers[0]
    assert "Bearer secret" in endpoint.headers[0]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=429), "status 429"),
        (Reply([chunk("a"), event({"error": {"message": "it broke"}}), DONE]), "error event"),
        (Reply([chunk("a"), event(b"{no json"), DONE]), "bad JSON"),
        (Reply([chunk("a"), usage(1)]), "cut"),
        (Reply([chunk("a")], cut=True), "connection lost"),
        (Reply([chunk("a"), DONE]), "no usage"),
        (Reply(delay=30.0), "timeout"),
    ],
)
def test_a_fault_is_recorded_under_its_kind(reply: Reply, kind: str) -> None:
    with running(lambda body: reply) as endpoint:
        found = _ask(endpoint, timeout=0.3 if kind == "timeout" else 20.0)
    assert found.error == kind
    assert found.message
    assert not found.ok


def test_nobody_listens() -> None:
    with running(lambda body: answer("a")) as endpoint:
        pass
    assert _ask(endpoint).error == "no connection"


def test_hanging_up_closes_the_connection() -> None:
    with running(lambda body: Reply([chunk("a")] * 2000)) as endpoint:
        found = _ask(endpoint, leave_after=3)
        assert endpoint.left.acquire(timeout=10.0)
    assert (found.left, found.error, len(found.deliveries)) == (True, None, 3)
