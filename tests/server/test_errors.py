"""Every refusal: the right status, OpenAI's shape, the field by its name; and nothing happens to anybody else."""

from __future__ import annotations

import gzip
import json
import threading
import time
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.engine.fake_engine import FakeEngine
from tests.server.conftest import Served
from tests.server.kit import HELLO, Reciting, answer, error, in_process, post, settings, tokenizer, toy_engine

from paceline.core.errors import ConfigError, ModelError, RowFailed
from paceline.core.row import Finished
from paceline.engine.async_llm import AsyncLLM
from paceline.server.app import create_app
from paceline.server.errors import of_exception
from paceline.server.fields import REFUSED
from paceline.server.observe import Observer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (CHAT, {"messages": HELLO, "temprature": 1}, "temprature"),
    (CHAT, {"messages": HELLO, "Temperature": 1}, "Temperature"),
    (CHAT, {"messages": HELLO, "temperature": "1"}, "temperature"),
    (CHAT, {"messages": HELLO, "temperature": True}, "temperature"),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
    (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": HELLO, "reasoning_effort": "low"}, "reasoning_effort"),
    (CHAT, {"messages": HELLO, "store": True}, "store"),
    (CHAT, {"messages": HELLO, "service_tier": "flex"}, "service_tier"),
    (CHAT, {"messages": HELLO, "speculative": {"num_draft_tokens": -1}}, "speculative.num_draft_tokens"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT, {"messages": HELLO, "structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": HELLO, "cache_salt": ""}, "cache_salt"),
    (TEXT, {"prompt": "\ud800"}, "prompt"),
    (TEXT, {"prompt": "a", "bad_words": ["\ud800"]}, "bad_words"),
    (TEXT, {"prompt": [10**6]}, "prompt"),
    (TEXT, {"prompt": "a" * 2000}, "prompt"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_a_field_at_fault_is_named(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    found = error(served.client, path, 400, **body)
    assert found["param"] == param and found["type"] == "invalid_request_error"
    assert param.split(".")[0] in found["message"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_fields_of_other_servers_are_refused_with_advice(served: Served, name: str) -> None:
    path = "/v1/responses" if name == "prompt" else CHAT
    body = {"input": "x"} if name == "prompt" else {"messages": HELLO}
    found = error(served.client, path, 400, **body, **{name: "x"})
    assert found["param"] == name and REFUSED[name] in found["message"]


def test_a_field_that_may_only_be_null_is_refused_with_advice(served: Served) -> None:
    assert REFUSED["suffix"] in error(served.client, TEXT, 400, prompt="a", suffix="z")["message"]
    assert answer(served.client, TEXT, prompt="a", suffix=None, max_tokens=1)["choices"]


def test_a_text_that_no_context_holds_is_refused_before_it_is_encoded(served: Served) -> None:
    text = "a" * 1_500_000
    for path, body, param in (
        (TEXT, {"prompt": text}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": text}]}, "messages"),
    ):
        found = error(served.client, path, 400, **body)
        assert found["param"] == param and found["code"] == "context_length_exceeded"
        assert "characters" in found["message"] and len(found["message"]) < 200
    assert " tokens" in error(served.client, TEXT, 400, prompt="a" * 20_000)["message"]  # short enough to be counted


def test_a_schema_that_cannot_be_enforced_is_named(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    for stream in (False, True):
        found = error(served.client, CHAT, 400, messages=HELLO, response_format=form, stream=stream)
        assert found["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"null", "application/json"),
        (b"[1]", "application/json"),
        (b'{"prompt": "a"}', "text/plain"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "application/json"),
        (b'{"prompt": "\xff"}', "application/json"),
        (gzip.compress(b'{"prompt": "a"}'), "application/json"),
    ],
)
def test_bodies_that_are_no_objects(served: Served, content: bytes, kind: str) -> None:
    response = served.client.post(TEXT, content=content, headers={"Content-Type": kind})
    assert response.status_code == 400
    found = response.json()["error"]
    assert found["type"] == "invalid_request_error" and found["code"] == "invalid_json"


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": [0.5] * 300_000}, "prompt[0]"),
        (TEXT, {"prompt": "a", **{f"x{n}": n for n in range(100_000)}}, "x0"),
        (TEXT, {"prompt": "a", "logit_bias": {f"x{n}": "y" for n in range(5000)}}, "logit_bias"),
        (CHAT, {"messages": [{"role": "x"}] * 50_000}, "messages[0].role"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": nested(200)}, "chat_template_kwargs"),
        (
            "/v1/responses",
            {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": nested(200)}]},
            "tools[0].parameters",
        ),
    ],
    ids=["numbers", "fields", "keys", "messages", "variables", "schema"],
)
def test_a_body_full_of_faults_is_refused_at_the_first(
    served: Served, path: str, body: dict[str, Any], param: str
) -> None:
    response = post(served.client, path, **body)
    assert response.status_code == 400 and len(response.content) < 1000
    assert response.json()["error"]["param"] == param


def test_more_answers_than_may_ever_wait() -> None:
    with in_process(Reciting("hi"), max_queue=4) as client:
        for body, param in (({"prompt": "a", "n": 13}, "n"), ({"prompt": ["a"] * 13}, "prompt")):
            found = error(client, TEXT, 400, **body)
            assert found["param"] == param and found["code"] == "invalid_value" and "at most 12" in found["message"]
        assert len(answer(client, TEXT, prompt="a", n=12)["choices"]) == 12


def test_unknown_models_paths_and_methods(served: Served) -> None:
    assert error(served.client, CHAT, 404, messages=HELLO, model="gpt")["code"] == "model_not_found"
    assert served.client.get("/v1/models/gpt").status_code == 404
    assert served.client.get("/v2").json()["error"]["type"] == "not_found_error"
    refused = served.client.get(CHAT)
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"


def test_models_version_and_health(served: Served) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert model["id"] == "toy" and served.client.get("/v1/models/toy").json() == model
    assert served.client.get("/version").json()["version"]
    assert served.client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/", "/health", "/version", "/metrics", "/v1/models", "/v1/models/toy"])
def test_what_can_be_got_can_be_asked_for_without_its_body(served: Served, path: str) -> None:
    found = served.client.head(path)
    assert found.status_code == 200 and not found.content
    assert found.headers["content-type"] == served.client.get(path).headers["content-type"]
    assert served.client.head(CHAT).status_code == 405 and served.client.head("/v2").status_code == 404


def test_request_ids_are_kept_or_made(served: Served) -> None:
    kept = served.client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert kept.headers["x-request-id"] == "mine-1"
    assert served.client.get("/health").headers["x-request-id"].startswith("req_")
    bad = served.client.get("/health", headers={"X-Request-Id": "no spaces"})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "X-Request-Id"


def test_keys_are_asked_for() -> None:
    with in_process(Reciting("hi"), api_key=("one", "two")) as client:
        for headers in (
            {},
            {"Authorization": "Bearer three"},
            {"Authorization": "one"},
            {"Authorization": "Basic one"},
        ):
            refused = client.get("/v1/models", headers=headers)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert "x-request-id" in refused.headers
        for key in ("one", "two"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/health").status_code == 200


def test_callers_and_salts_are_kept_apart() -> None:
    spaces = []
    with toy_engine() as engine, in_process(engine, api_key=("one", "two")) as client:
        posted = engine._queue
        engine._queue = lambda requests, consumers: (
            spaces.append(requests[0].namespace),
            posted(requests, consumers),
        )  # type: ignore[method-assign,assignment,func-returns-value,misc]
        for key, salt in (("one", None), ("one", None), ("two", None), ("one", "x"), ("one", "y")):
            body = {"prompt": "a", "max_tokens": 1} | ({} if salt is None else {"cache_salt": salt})
            assert client.post(TEXT, json=body, headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert len(set(spaces)) == 4 and spaces[0] == spaces[1] and None not in spaces
    assert not any("one" in str(space) for space in spaces)


def test_bodies_that_are_too_large() -> None:
    with in_process(Reciting("hi"), max_body_bytes=2000) as client:
        assert error(client, TEXT, 413, prompt="a" * 3000)["code"] == "body_too_large"
        parts = iter([b'{"prompt": "', b"a" * 3000, b'"}'])  # no length is declared
        response = client.post(TEXT, content=parts, headers={"Content-Type": "application/json"})
        assert response.status_code == 413
        assert answer(client, TEXT, prompt="a")["choices"][0]["text"] == "hi"


def test_a_full_queue_says_when_to_come_back() -> None:
    hold = threading.Event()
    engine = Reciting("hi")
    engine.hold = hold
    with in_process(engine, max_queue=1) as client:
        workers = [threading.Thread(target=post, args=(client, TEXT), kwargs={"prompt": "a"}) for _ in range(9)]
        for worker in workers:
            worker.start()
        while len(engine.seen) < 9:
            pass
        refused = post(client, TEXT, prompt="a")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        hold.set()
        for worker in workers:
            worker.join()
        assert post(client, TEXT, prompt="a").status_code == 200


def test_the_port_answers_while_the_model_loads() -> None:
    ready = threading.Event()

    def load() -> AsyncLLM:
        ready.wait()
        return AsyncLLM.from_engine(Reciting("hi"))

    with TestClient(create_app(load, settings())) as client:
        refused = post(client, TEXT, prompt="a")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "loading"
        assert "retry-after" in refused.headers
        assert client.get("/health").json()["status"] == "loading"
        assert client.get("/v1/models").status_code == 503
        ready.set()
        while client.get("/health").status_code != 200:
            pass
        assert answer(client, TEXT, prompt="a")["choices"][0]["text"] == "hi"


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    failed = threading.Event()

    def load() -> AsyncLLM:
        raise ModelError("/models/x", "is damaged")

    app = create_app(load, settings())
    app.state.server.on_failure = failed.set
    with TestClient(app) as client:
        assert failed.wait(5)
        assert client.get("/health").json()["status"] == "failed"
        assert "damaged" not in post(client, TEXT, prompt="a").text
        assert isinstance(app.state.server.failure, ModelError)


def test_an_engine_that_died_or_hangs_fails_the_health() -> None:
    engine = Reciting("hi")
    with in_process(engine, stuck_timeout=1.0) as client:
        assert client.get("/health").status_code == 200
        engine.turn_seconds = lambda: 1.5  # type: ignore[method-assign]
        assert client.get("/health").json()["status"] == "stuck"
        engine.turn_seconds = lambda: 0.5  # type: ignore[method-assign]
        engine.closed = True
        assert client.get("/health").json()["status"] == "engine failed"
        assert error(client, TEXT, 503, prompt="a")["code"] == "engine_closed"


class _Failing(Reciting):
    """Every request fails after its first burst was sent, with a message that holds the prompt."""

    def _serve(self, row: Any, consumer: Any) -> None:
        consumer.take(row, self.answer[:3], None)
        time.sleep(0.1)
        consumer.finish(row, Finished("error", error=ValueError("a secret prompt")))


def test_a_failure_of_ours_tells_nothing_and_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    with in_process(_Failing("the other")) as client:
        found = error(client, TEXT, 500, prompt="a")
        assert found["type"] == "server_error" and "secret" not in found["message"]
        lines = post(client, TEXT, prompt="a", stream=True).text.split("\n\n")
        assert json.loads(lines[-3].removeprefix("data: "))["error"]["code"] == "engine_failure"
        assert lines[-2] == "data: [DONE]"
    assert "ValueError" in caplog.text and "secret" not in caplog.text


def test_observers_hear_of_every_refusal() -> None:
    heard: list[tuple[str, int]] = []

    class Ear(Observer):
        def on_refusal(self, route: str, status: int, code: str | None) -> None:
            heard.append((route, status))

    with in_process(Reciting("hi"), api_key=("k",)) as client:
        client.app.state.server.observers.append(Ear())  # type: ignore[attr-defined]
        client.headers["Authorization"] = "Bearer k"
        for body in ({"prompt": "a", "x": 1}, {"prompt": ""}, {"prompt": "", "stream": True}):
            error(client, TEXT, 400, **body)
        client.get("/v9")
        client.headers["Authorization"] = "Bearer x"
        client.get("/v1/models")
    assert heard == [(TEXT, 400)] * 3 + [("/v9", 404), ("/v1/models", 401)]


def test_a_model_without_a_template_says_so() -> None:
    engine = FakeEngine((70, 71), tokenizer=tokenizer(""))
    with in_process(engine) as client:
        found = error(client, CHAT, 400, messages=HELLO)
        assert found["param"] == "messages" and "chat template" in found["message"]


def test_cross_origin_calls_are_off_by_default() -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with in_process(Reciting("hi")) as client:
        assert "access-control-allow-origin" not in client.get("/version", headers=asked).headers
    with in_process(Reciting("hi"), allowed_origins=("https://a.example",), api_key=("k",)) as client:
        allowed = client.options(CHAT, headers=asked)
        assert allowed.status_code == 200
        refused = client.post(CHAT, headers=asked, json={})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


def test_errors_of_the_engine_as_answers() -> None:
    assert of_exception(RowFailed("no token can be drawn")).status == 500
    assert of_exception(ConfigError("x", "y")).status == 500
