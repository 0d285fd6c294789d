"""``/metrics``: the figures of the engine and of the requests for Prometheus. Names: docs/metrics.md.

Counters are read from the engine when somebody asks; histograms are filled as requests go by. A figure whose feature is
not there is absent, not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from .. import __version__
from ..core.stats import EngineStats
from ..engine.outputs import RequestOutput, StreamDelta
from .history import History
from .observe import Observer, Watched
from .state import ServerState

PREFIX = "paceline:"
#: Seconds that the gauges of recent behaviour look back.
WINDOW = 60.0

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

#: Name -> what it counts, and the field of :class:`EngineStats` it is read from.
_COUNTERS: dict[str, tuple[str, str]] = {
    "spec_decode_num_drafts": ("Draft rounds of rows: rounds in which a row had drafter proposals.", "num_drafts"),
    "spec_decode_num_draft_tokens": ("Tokens proposed by the drafter.", "num_draft_tokens"),
    "spec_decode_num_accepted_tokens": ("Proposals of the drafter that were accepted.", "num_accepted_tokens"),
    "spec_decode_num_plain_rounds": ("Rounds of rows without any proposal.", "plain_rounds"),
    "spec_decode_num_span_rounds": ("Rounds of rows that verified a copied span.", "span_rounds"),
    "spec_decode_num_span_tokens": ("Tokens of copied spans that were verified.", "span_tokens"),
    "spec_decode_num_accepted_span_tokens": ("Tokens of copied spans that were accepted.", "accepted_span_tokens"),
    "spec_decode_num_probes": ("Rounds that drafted to learn whether drafting pays.", "probes"),
    "spec_decode_losing_stretches": ("Stretches of draft rounds that were slower than plain.", "losing_stretches"),
    "drafter_failures": ("Failures of the drafter; each costs its proposals, no token.", "drafter_failures"),
    "rounds": ("Rounds of the whole group.", "rounds"),
    "device_rounds": ("Rounds whose acceptance was decided on the device.", "device_rounds"),
    "ahead_rounds": ("Rounds that were launched before the one before them was read.", "ahead_rounds"),
    "ahead_flushes": ("Times that rounds in flight had to be read before the next decision.", "flushes"),
    "dropped_positions": ("Positions computed in flight and not used.", "dropped_positions"),
    "host_reads": ("Times that the host waited for a result of the device.", "host_reads"),
    "preemptions": ("Rows put aside to make room for older ones.", "preemptions"),
    "bad_rows": ("Rows that ended because no token could be drawn.", "bad_rows"),
    "prompt_tokens": ("Prompt tokens taken in.", "prompt_tokens"),
    "generation_tokens": ("Tokens delivered.", "generation_tokens"),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
}
#: The same, for fields that hold a count per position, depth or reason: name -> what it counts, field, label.
_LABELLED: dict[str, tuple[str, str, str]] = {
    "spec_decode_num_draft_tokens_per_pos": ("Proposals by their position.", "draft_tokens_by_pos", "position"),
    "spec_decode_num_accepted_tokens_per_pos": (
        "Accepted proposals by their position.",
        "accepted_tokens_by_pos",
        "position",
    ),
    "spec_decode_depth": ("Rounds of rows by the number of drafter proposals.", "depth_histogram", "depth"),
    "request_success": ("Requests that ended, by reason; one per sample.", "finished", "finished_reason"),
}
_MEDIA = ("text/plain", "application/openmetrics-text")


class RequestMetrics(Observer):
    """Histograms over requests, and what was refused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=registry)

        self._first = histogram(
            "time_to_first_token_seconds", "From arrival to the first delivered token.", _FIRST_TOKEN
        )
        self._between = histogram("inter_token_latency_seconds", "Between deliveries of one sample.", _BETWEEN)
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the end of a sample.", _WHOLE)
        self._refused = Counter(
            f"{PREFIX}http_refusals", "Requests answered with an error, by status.", ["status"], registry=registry
        )

    def on_first_token(self, request: Watched, seconds: float) -> None:
        self._first.observe(seconds)

    def on_token(self, request: Watched, delta: StreamDelta, gap: float | None) -> None:
        if gap is not None:
            self._between.observe(gap)

    def on_finish(self, request: Watched, output: RequestOutput, seconds: float) -> None:
        self._whole.observe(seconds)

    def on_refusal(self, route: str, status: int, code: str | None) -> None:
        self._refused.labels(str(status)).inc()


class EngineCollector(Collector):
    """The engine's own figures at the moment of a scrape; none while the model loads."""

    def __init__(self, state: ServerState, history: History) -> None:
        self._state = state
        self._history = history

    def collect(self) -> Iterator[Metric]:
        stats, info = self._state.stats(), self._state.info()
        if stats is None:
            return
        yield from _counters(stats)
        yield _labelled("generation_tokens_by_origin", "Tokens delivered, by origin.", "origin", self._history.origins)
        yield from self._gauges(stats, info)

    def _gauges(self, stats: EngineStats, info: Mapping[str, Any]) -> Iterator[Metric]:
        yield _gauge("num_requests_running", "Requests that decode or prefill.", info["num_requests_running"])
        yield _gauge("num_requests_waiting", "Requests that wait for a row.", info["num_requests_waiting"])
        if info.get("kv_cache_usage") is not None:
            yield _gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", info["kv_cache_usage"])
        if stats.time_saved_ms:
            text = "Seconds that speculation saved against plain decoding, by the engine's costs."
            yield _gauge("spec_decode_time_saved_seconds", text, stats.time_saved_ms / 1e3)
        change = self._history.change(WINDOW)
        if change is not None and change.accept_length is not None:
            text = "Mean acceptance length of the last minute: 1 + accepted / draft rounds."
            yield _gauge("spec_accept_length", text, change.accept_length)
        if change is not None and change.depth is not None:
            yield _gauge("spec_depth", "Mean drafter proposals per row and round, last minute.", change.depth)
        about = {name: str(info.get(name)) for name in ("model", "dtype", "device", "drafter")}
        facts = GaugeMetricFamily(f"{PREFIX}info", "What runs; always 1.", labels=[*about, "version"])
        facts.add_metric([*about.values(), __version__], 1.0)
        yield facts


def _counters(stats: EngineStats) -> Iterator[Metric]:
    for name, (text, field) in _COUNTERS.items():
        value = getattr(stats, field, None)
        if value is not None:
            yield CounterMetricFamily(PREFIX + name, text, value=float(value))
    for name, (text, field, label) in _LABELLED.items():
        counts = getattr(stats, field)
        pairs = counts.items() if isinstance(counts, dict) else enumerate(counts)
        yield _labelled(name, text, label, {str(key): count for key, count in pairs})


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, count in counts.items():
        family.add_metric([key], float(count))
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=float(value))


def metric_names() -> set[str]:
    """Every series that may be exposed, as queries name them."""
    counts = (*_COUNTERS, *_LABELLED, "generation_tokens_by_origin", "http_refusals")
    load = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    gauges = (*load, "spec_accept_length", "spec_depth", "spec_decode_time_saved_seconds")
    histograms = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
    singles = {f"{name}_total" for name in counts} | {*gauges, "info"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return {PREFIX + name for name in singles | parts}


def build_registry(state: ServerState, history: History) -> CollectorRegistry:
    """A registry of its own, with the engine's collector and the request metrics, which observe from now on."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(state, history))
    state.observers.append(RequestMetrics(registry))
    return registry


def install(app: FastAPI, state: ServerState, history: History) -> None:
    """Mount ``/metrics``."""
    registry = build_registry(state, history)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {name: {} for name in _MEDIA}}})
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics if that is asked for."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=media_type)
