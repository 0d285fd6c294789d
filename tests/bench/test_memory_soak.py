"""The soak reports bytes of what it ran, and tells growth from settling."""

from __future__ import annotations

import json

import pytest

from paceline.bench.memory_soak import growth, main
from paceline.testing.models import tiny_model


def test_settling_is_no_growth() -> None:
    assert growth([5, 90, 100, 100, 100, 100, 100, 100]) == pytest.approx(0)


def test_a_leak_is_growth() -> None:
    assert growth([100 + 10 * step for step in range(20)]) == 100


def test_few_samples_are_enough() -> None:
    assert growth([7]) == 0
    assert growth([1, 2, 3]) == 1


def test_it_ends_with_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(tiny_model("llama")), "--dtype", "float32", "--threads", "1"]
    main([*arguments, "--kv-cache-tokens", "2048", "--requests", "210", "--batch", "4"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["requests"] == 210
    assert len(found["samples"]) == 3
    assert found["planned_total"] == sum(found["plan"][name] for name in ("base", "weights", "kv_cache", "transient"))
