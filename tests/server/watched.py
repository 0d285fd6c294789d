"""A server over an engine whose figures a test sets by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.engine.fake_engine import FakeEngine

from paceline.core.stats import EngineStats
from paceline.engine.async_llm import AsyncLLM
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from paceline.server.state import ServerState


@dataclass
class ShownEngine(FakeEngine):
    """Says ``figures`` and ``facts``."""

    figures: EngineStats = field(default_factory=EngineStats)
    facts: dict[str, Any] = field(default_factory=dict)

    def stats(self) -> EngineStats:
        return self.figures.snapshot()

    def info(self) -> dict[str, Any]:
        load = {"num_requests_running": 2, "num_requests_waiting": 3, "kv_cache_usage": 0.25, "closed": False}
        return super().info() | load | self.facts


def full_stats() -> EngineStats:
    """Every table has entries, every count its own value."""
    stats = EngineStats(
        num_drafts=10,
        num_draft_tokens=40,
        num_accepted_tokens=25,
        draft_tokens_by_pos=[10, 10, 10, 10],
        accepted_tokens_by_pos=[9, 7, 5, 4],
        depth_histogram={0: 6, 4: 10},
        finished={"stop": 3, "length": 1, "abort": 2},
    )
    stats.plain_rounds, stats.span_rounds, stats.rounds = 5, 1, 12
    stats.time_saved_ms, stats.losing_stretches = 1500.0, 2
    stats.prompt_tokens, stats.generation_tokens = 111, 222
    return stats


def app_of(engine: ShownEngine, **settings: Any) -> Any:
    return create_app(AsyncLLM.from_engine(engine), ServerSettings(**settings))


def client_of(engine: ShownEngine, **settings: Any) -> TestClient:
    return TestClient(app_of(engine, **settings))


def state_of(client: TestClient) -> ServerState:
    state: ServerState = client.app.state.server  # type: ignore[attr-defined]
    return state


def scraped(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(series, its labels) -> value."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples), "a series stands there twice"
    return found
