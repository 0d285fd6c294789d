"""One real server over the toy model for all tests that only ask it something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.server.kit import app_over, listening, toy_engine

from paceline import LLM
from paceline.engine.engine import Engine


@dataclass(frozen=True)
class Served:
    """A server's address, a client of it, and the synchronous facade over the same engine."""

    url: str
    client: httpx.Client
    llm: LLM
    engine: Engine


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with toy_engine() as engine, listening(app_over(engine)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield Served(url, client, LLM.from_engine(engine), engine)
