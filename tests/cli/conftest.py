"""An engine that recites in place of the one that commands build."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tests.engine.fake_engine import FakeEngine
from tests.engine.tokenizers_for_tests import byte_level

from paceline.core.config import EngineConfig
from paceline.engine import llm as llm_module
from paceline.engine.llm import LLM


class Terminal(io.StringIO):
    """Standard input of somebody who types nothing."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What commands build in place of a real engine; ``config`` is what it was built from."""
    tokenizer = byte_level()
    fake = FakeEngine(tokenizer.encode("the other people"), tokenizer=tokenizer, bursts=[3])

    def build(model: str | None = None, progress: Any = None, **settings: Any) -> LLM:
        fake.config = EngineConfig.build(model=model, **settings)
        fake.closed = False
        return LLM.from_engine(fake)

    monkeypatch.setattr(llm_module, "LLM", build)
    monkeypatch.setattr("sys.stdin", Terminal())
    return fake
