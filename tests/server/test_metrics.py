"""``/metrics``: the names of the conventions, counts of the engine as they are, absent what is not there."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.server.watched import ShownEngine, client_of, full_stats, scraped, state_of

from paceline.core.stats import EngineStats, SpecStats
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.outputs import RequestMetrics, RequestOutput, SpeculativeMetrics, StreamDelta, TextPiece
from paceline.server.app import create_app
from paceline.server.metrics import metric_names
from paceline.server.observe import Watched

_ROOT = Path(__file__).resolve().parents[2]


def _series(client: TestClient) -> dict[str, float]:
    """Series without labels."""
    return {name: value for (name, labels), value in scraped(client.get("/metrics").text).items() if not labels}


def test_counts_of_the_engine_are_exposed_as_they_are() -> None:
    with client_of(ShownEngine((), figures=full_stats())) as client:
        found = scraped(client.get("/metrics").text)
    expected = {
        "spec_decode_num_drafts_total": 10,
        "spec_decode_num_draft_tokens_total": 40,
        "spec_decode_num_accepted_tokens_total": 25,
        "spec_decode_num_plain_rounds_total": 5,
        "spec_decode_num_span_rounds_total": 1,
        "prompt_tokens_total": 111,
        "generation_tokens_total": 222,
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "spec_decode_losing_stretches_total": 2,
        "spec_decode_time_saved_seconds": 1.5,
    }
    assert {name: found[f"paceline:{name}", ()] for name in expected} == expected
    by_position = [
        found["paceline:spec_decode_num_accepted_tokens_per_pos_total", (("position", str(p)),)] for p in range(4)
    ]
    assert by_position == [9, 7, 5, 4]
    assert found["paceline:spec_decode_depth_total", (("depth", "4"),)] == 10
    assert found["paceline:request_success_total", (("finished_reason", "abort"),)] == 2


def test_a_figure_whose_feature_is_not_there_is_absent() -> None:
    with client_of(ShownEngine((), facts={"kv_cache_usage": None})) as client:
        text = client.get("/metrics").text
    for name in ("prefix_cache", "kv_cache_usage_perc", "spec_accept_length", "spec_depth "):
        assert f"paceline:{name}" not in text


@dataclass
class _LaterStats(EngineStats):
    prefix_cache_queries: int = 64
    prefix_cache_hits: int = 48

    def snapshot(self) -> EngineStats:
        return self


def test_a_figure_that_the_engine_gains_is_exposed() -> None:
    with client_of(ShownEngine((), figures=_LaterStats())) as client:
        found = _series(client)
    assert found["paceline:prefix_cache_queries_total"] == 64
    assert found["paceline:prefix_cache_hits_total"] == 48


def test_while_the_model_loads_nothing_of_the_engine_is_claimed() -> None:
    loading = threading.Event()

    def load() -> AsyncLLM:
        loading.wait(20.0)
        raise RuntimeError("not today")

    with TestClient(create_app(load)) as client:
        answer = client.get("/metrics")
        loading.set()
    assert answer.status_code == 200
    assert "generation_tokens" not in answer.text
    assert scraped(answer.text)["paceline:time_to_first_token_seconds_count", ()] == 0


def _watched() -> Watched:
    return Watched("r", "/v1/chat/completions", "m", 3, 1, True, 0.0)


def _output() -> RequestOutput:
    metrics = RequestMetrics(3, 4, 0, 0.3, 2.0, SpeculativeMetrics.of(SpecStats(), 4))
    return RequestOutput("r", None, (1, 2, 3), (), metrics)


def test_histograms_are_filled_as_requests_go_by() -> None:
    with client_of(ShownEngine(())) as client:
        state, request = state_of(client), _watched()
        pieces = tuple(TextPiece("a", origin) for origin in ("drafted", "drafted", "corrected"))  # type: ignore[arg-type]
        state.tell("on_first_token", request, 0.3)
        state.tell("on_token", request, StreamDelta("aaa", (1, 2, 3), pieces=pieces), None)
        state.tell("on_token", request, StreamDelta("a", (4,)), 0.04)
        state.tell("on_finish", request, _output(), 2.0)
        state.tell("on_refusal", "/v1/completions", 429, "queue_full")
        found = scraped(client.get("/metrics").text)
    assert found["paceline:time_to_first_token_seconds_sum", ()] == pytest.approx(0.3)
    assert found["paceline:inter_token_latency_seconds_count", ()] == 1
    assert found["paceline:inter_token_latency_seconds_bucket", (("le", "0.05"),)] == 1
    assert found["paceline:inter_token_latency_seconds_bucket", (("le", "0.03"),)] == 0
    assert found["paceline:e2e_request_latency_seconds_sum", ()] == 2.0
    assert found["paceline:http_refusals_total", (("status", "429"),)] == 1
    assert found["paceline:generation_tokens_by_origin_total", (("origin", "drafted"),)] == 2
    assert found["paceline:generation_tokens_by_origin_total", (("origin", "copied"),)] == 0


def test_gauges_of_the_last_minute() -> None:
    engine = ShownEngine((), figures=EngineStats(num_drafts=4, num_draft_tokens=8, depth_histogram={2: 4}))
    with client_of(engine) as client:
        _wait_for_a_sample(client)
        engine.figures = EngineStats(
            num_drafts=6, num_draft_tokens=16, num_accepted_tokens=5, depth_histogram={2: 4, 4: 2, 0: 2}
        )
        found = _series(client)
    assert found["paceline:spec_accept_length"] == 1.0 + 5 / 2
    assert found["paceline:spec_depth"] == 2.0  # two rounds of 4, two of 0


def _wait_for_a_sample(client: TestClient) -> None:
    while not client.get("/dashboard/data.json").json()["recent"]:
        time.sleep(0.01)


def test_openmetrics_on_request() -> None:
    with client_of(ShownEngine((), figures=full_stats())) as client:
        answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_no_key_is_needed() -> None:
    with client_of(ShownEngine(()), api_key=("secret",)) as client:
        assert client.get("/metrics").status_code == 200


def test_the_list_of_names_is_that_of_a_full_scrape() -> None:
    engine = ShownEngine((), figures=_LaterStats(**vars(full_stats())))
    with client_of(engine) as client:
        _wait_for_a_sample(client)
        engine.figures = _LaterStats(**(vars(full_stats()) | {"num_drafts": 12, "depth_histogram": {0: 6, 4: 12}}))
        state_of(client).tell("on_refusal", "/", 404, None)
        found = {name for name, _ in scraped(client.get("/metrics").text) if not name.endswith("_created")}
    assert found == metric_names()


def test_every_name_in_the_grafana_dashboard_exists() -> None:
    text = (_ROOT / "docs" / "grafana.json").read_text("utf-8")
    used = set(re.findall(r"paceline:[a-z0-9_]+", text))
    assert len(used) >= 20
    assert used <= metric_names()
    panels = json.loads(text)["panels"]
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in panels]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(set(places))


def test_every_name_is_documented() -> None:
    text = (_ROOT / "docs" / "metrics.md").read_text("utf-8")
    plain = {re.sub(r"_(bucket|sum|count)$", "", name.removeprefix("paceline:")) for name in metric_names()}
    assert [name for name in sorted(plain) if not re.search(rf"`{name}[`{{]", text)] == []
