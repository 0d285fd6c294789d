"""The equality run on a tiny model on the CPU: it compares what it says it compares, and notices differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.bench.gpu import equality
from paceline.bench.gpu.equality import EqualitySettings, check_equality, sampling
from paceline.bench.gpu.forward import ForwardStand
from paceline.engine.engine import Engine
from paceline.testing.models import tiny_model


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EqualitySettings:
    prompts = tmp_path_factory.mktemp("prompts") / "ids.jsonl"
    entries = [{"name": f"p{n}", "ids": [3 + (n * 7 + place) % 40 for place in range(6 + n)]} for n in range(4)]
    prompts.write_text("\n".join(json.dumps(entry) for entry in entries), "utf-8")
    return EqualitySettings(
        model=str(tiny_model("llama")),
        prompts=str(prompts),
        device="cpu",
        dtype="float32",
        tokens=12,
        rows=3,
        depth=2,
        rounds=40,
        max_model_len=64,
    )


def test_every_arm_gives_the_tokens_of_plain_decoding(settings: EqualitySettings) -> None:
    found = check_equality(settings, ("streams",))["streams"]
    assert "failure" not in found, found
    arms = {(arm["drafter"], arm["sampling"], arm["rows"]) for arm in found["arms"]}
    assert {kind for _, kind, _ in arms} == {"greedy", "sampled"}
    assert ("none", "greedy", 1) in arms
    assert {"ngram", "suffix", "prediction"} < {name for name, _, _ in arms}
    lengths = {(arm["drafter"], arm["sampling"]): arm["acceptance_length"] for arm in found["arms"]}
    assert lengths["prediction", "greedy"] > 2.0, "most of a prediction is right"
    assert all(arm["same"] == arm["prompts"] and arm["first_difference"] is None for arm in found["arms"])
    assert all(arm["tokens"] > 0 for arm in found["arms"])


def test_a_drafter_that_changed_a_token_would_be_noticed(
    settings: EqualitySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = equality.decode

    def lying(engine: Engine, subject: Any, kind: str, predictions: Any) -> tuple[list[list[int]], float]:
        outputs, seconds = original(engine, subject, kind, predictions)
        if engine.info()["drafter"] != "none":
            outputs[1] = [*outputs[1][:-1], outputs[1][-1] + 1]
        return outputs, seconds

    monkeypatch.setattr(equality, "decode", lying)
    arms = check_equality(settings, ("streams",))["streams"]["arms"]
    wrong = [arm for arm in arms if arm["drafter"] not in ("none", "prediction")]
    assert wrong
    assert all(arm["same"] == arm["prompts"] - 1 for arm in wrong)
    assert all(arm["first_difference"].startswith("p1: token ") for arm in wrong)


def test_logits_are_compared_bit_for_bit(settings: EqualitySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "LOGIT_GRID", ((1, 3), (1, 4)))
    assert check_equality(settings, ("logits",))["logits"]["different"] == []
    original = ForwardStand.logits

    def off(stand: ForwardStand, rows: int, width: int) -> torch.Tensor:
        logits = original(stand, rows, width)
        return logits + 1e-4 if rows == 3 else logits

    monkeypatch.setattr(ForwardStand, "logits", off)
    found = check_equality(settings, ("logits",))["logits"]
    assert {(cell["rows"], cell["width"]) for cell in found["different"]} == {(3, 1), (3, 4)}


def test_the_soak_runs_its_rounds_and_leaves_nobody(settings: EqualitySettings) -> None:
    found = check_equality(settings, ("soak",))["soak"]
    assert "failure" not in found, found
    assert found["rounds"] >= settings.rounds
    assert found["running"] == 0


def test_every_prompt_has_its_own_seed() -> None:
    assert sampling("greedy", 0, 4).greedy
    assert not sampling("sampled", 0, 4).greedy
    assert sampling("sampled", 0, 4).seed != sampling("sampled", 1, 4).seed


def test_a_failing_part_is_reported_in_its_place(settings: EqualitySettings, tmp_path: Path) -> None:
    deep = EqualitySettings(**{**settings.__dict__, "depth": 99})
    assert "spec_tokens" in check_equality(deep, ("streams",))["streams"]["failure"]
