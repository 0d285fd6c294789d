"""The dashboard: its figures, its key, its policy, and the page itself in a headless browser."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.watched import ShownEngine, client_of, full_stats, state_of

from paceline.core.stats import EngineStats
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.outputs import StreamDelta, TextPiece
from paceline.server.app import create_app
from paceline.server.observe import Watched
from paceline.server.settings import ServerSettings
from paceline.testing.models import tiny_model

_DATA = "/dashboard/data.json"
_SMALL: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 2}


def _recent(client: Any) -> dict[str, Any]:
    """The document once it has a history."""
    while True:
        document: dict[str, Any] = client.get(_DATA).json()
        if document["recent"]:
            return document
        time.sleep(0.01)


def test_figures_of_the_last_minute_and_since_the_start() -> None:
    engine = ShownEngine((), figures=EngineStats())
    with client_of(engine) as client:
        _recent(client)
        piece = TextPiece("a", "copied")
        watched = Watched("r", "/v1/completions", "m", 1, 1, True, 0.0)
        state_of(client).tell("on_token", watched, StreamDelta("a", (1,), pieces=(piece,)), None)
        engine.figures = full_stats()
        found = _recent(client)
    assert (found["status"], found["server"]["model"], found["server"]["names"]) == ("ok", "fake", ["fake"])
    assert found["now"] == {"running": 2, "waiting": 3, "kv_usage": 0.25}
    assert found["totals"]["generation_tokens"] == 222
    assert found["totals"]["finished"] == {"stop": 3, "length": 1, "abort": 2}
    recent = found["recent"]
    assert recent["acceptance_by_position"] == [0.9, 0.7, 0.5, 0.4]
    assert (recent["acceptance_rate"], recent["accept_length"], recent["depth"]) == (25 / 40, 3.5, 2.5)
    assert recent["rounds"] == {"drafter": 10, "span": 1, "plain": 5}
    assert recent["origins"]["copied"] == 1
    assert recent["depths"] == {"0": 6, "4": 10}


def test_the_series_is_one_point_per_second_of_the_past() -> None:
    with client_of(ShownEngine(())) as client:
        while len(found := client.get(_DATA).json()["series"]) < 1:
            time.sleep(0.05)
        assert client.get(f"{_DATA}?seconds=1").status_code == 200
    assert all(point["at"] <= 0 for point in found)
    assert found[0]["tokens_per_second"] == 0.0
    assert found[0]["depth"] is None


@pytest.mark.parametrize("seconds", ["0", "601", "x", "nan", "inf"])
def test_a_span_that_makes_no_sense_is_refused(seconds: str) -> None:
    with client_of(ShownEngine(())) as client:
        answer = client.get(f"{_DATA}?seconds={seconds}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "seconds"


def test_figures_need_the_key_and_the_page_does_not() -> None:
    with client_of(ShownEngine(()), api_key=("secret",)) as client:
        assert client.get("/").status_code == 200
        assert client.get(_DATA).status_code == 401
        assert client.get(_DATA, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get(_DATA, headers={"authorization": "Bearer secret"}).status_code == 200


def test_while_the_model_loads_there_is_a_status_alone() -> None:
    loading = threading.Event()

    def load() -> AsyncLLM:
        loading.wait(20.0)
        raise RuntimeError("not today")

    with TestClient(create_app(load)) as client:
        found = client.get(_DATA).json()
        loading.set()
    assert (found["status"], found["totals"], found["series"]) == ("loading", None, [])


def test_the_policy_lets_the_page_run_and_nothing_else() -> None:
    with client_of(ShownEngine(())) as client:
        answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(src|href)=["'](?!data:)""", answer.text), "the page loads something from outside"
    assert not re.search(r"\sstyle=|\son\w+=", answer.text), "the policy forbids inline attributes"


# -- in a browser ----------------------------------------------------------------------------------------------------


@contextmanager
def _serving(**settings: Any) -> Iterator[str]:
    """A tiny model behind HTTP on a free port; the address."""
    import uvicorn

    llm = AsyncLLM(str(tiny_model("llama")), spec_method="ngram", spec_adaptive=False, **_SMALL)
    app = create_app(llm, ServerSettings(**settings))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium (on Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def _page(browser: Any, address: str, **how: Any) -> Iterator[Any]:
    """The dashboard in a new page, which may not complain about anything."""
    page = browser.new_page(**how)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert [text for text in said if "401" not in text] == []


def _until(page: Any, holds: Callable[[], bool]) -> None:
    """The page's policy forbids to evaluate text in it, so we look from outside."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("did not come about within 30 s")


def test_a_chat_streams_coloured_tokens_and_numbers_move(browser: Any) -> None:
    with _serving() as address, _page(browser, address) as page:
        page.wait_for_selector("#status.ok")
        assert page.inner_text("#speed-more") == "0 since the start"
        page.fill("#most", "40")
        page.fill("#message", "the and the and the and")
        page.press("#message", "Enter")
        page.wait_for_selector(".said.model .meta:not(:empty)")
        origins = page.eval_on_selector_all(".said.model span", "spans => spans.map(span => span.dataset.origin)")
        assert origins[0] == "plain"
        assert set(origins) <= {"drafted", "copied", "corrected", "bonus", "plain"}
        assert len(set(origins)) > 1, "nothing was drafted"
        assert "tokens per forward" in page.inner_text(".said.model .meta")
        _until(page, lambda: page.inner_text("#speed-more") != "0 since the start")
        page.wait_for_selector("#position-chart rect")
        page.fill("#message", "and again")
        page.click("#send")
        _until(page, lambda: page.locator(".said.model .meta:not(:empty)").count() == 2)
        page.click("#clear")
        assert page.inner_text("#talk") == ""


def test_the_page_asks_for_the_key(browser: Any) -> None:
    with _serving(api_key=("secret",)) as address, _page(browser, address) as page:
        page.wait_for_selector("#door:not([hidden])")
        assert not page.is_visible("#main")
        page.fill("#key", "wrong")
        page.click("#key-form button")
        _until(page, lambda: page.inner_text("#key-note") != "")
        page.fill("#key", "secret")
        page.click("#key-form button")
        page.wait_for_selector("#status.ok")
        assert page.is_visible("#main")


def test_the_page_follows_the_colour_scheme(browser: Any) -> None:
    shades = {}
    with _serving() as address:
        for scheme in ("light", "dark"):
            with _page(browser, address, color_scheme=scheme) as page:
                page.wait_for_selector("#status.ok")
                shades[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = {scheme: sum(map(int, re.findall(r"\d+", shade)[:3])) for scheme, shade in shades.items()}
    assert brightness["light"] > 600
    assert brightness["dark"] < 150
