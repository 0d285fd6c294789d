"""Loading the two-model drafter from a directory, a GGUF file or the hub; what is wrong with it is said at start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.draft.model_kit import TARGET, greedy
from tests.models.test_gguf_model import reference, to_layout

from paceline.core.config import EngineConfig
from paceline.core.errors import ConfigError, DraftError, ModelError
from paceline.draft.registry import default_registry, resolve_method
from paceline.engine import build as build_module
from paceline.engine.engine import Engine
from paceline.engine.inspect import inspect_model
from paceline.models import artifact as artifact_module
from paceline.testing.collect import Collector
from paceline.testing.models import TinyModel, tiny_model
from paceline.testing.truncate import truncate_model

PROMPT = tuple(range(20, 32))
SMALL = {"dtype": "float64", "device": "cpu", "max_num_seqs": 2, "kv_cache_tokens": 512, "max_model_len": 256}


def settings(drafter: Path | str | None, model: Path | str | None = None, **others: object) -> EngineConfig:
    names = {"model": str(model or tiny_model(TARGET)), "spec_model": None if drafter is None else str(drafter)}
    return EngineConfig.build(environ={}, **(SMALL | names | {"spec_adaptive": False} | others))


def answer(config: EngineConfig, tokens: int = 17) -> tuple[Collector, dict[str, object]]:
    engine = Engine.build(config)
    try:
        got = Collector()
        engine.add_request(PROMPT, greedy(tokens), got)
        got.wait()
        assert engine.stats().drafter_failures == 0
        return got, engine.info()
    finally:
        engine.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A drafter that may be damaged: the target's first layer."""
    return truncate_model(tiny_model(TARGET), tmp_path / "drafter", 1)


def test_a_directory_is_recognised_and_drafts(copy: Path) -> None:
    plain, _ = answer(settings(None, spec_method="none"))
    got, info = answer(settings(copy))
    assert got.tokens == plain.tokens
    assert (info["drafter"], info["spec_tokens"]) == ("draft_model", 4)
    assert got.spec.drafted > 0
    named, info = answer(settings(copy, spec_method="draft_model", spec_tokens=2))
    assert (named.tokens, info["spec_tokens"]) == (plain.tokens, 2)


def test_the_memory_plan_counts_the_drafter(copy: Path) -> None:
    plain = inspect_model(settings(None, spec_method="none"))
    drafted = inspect_model(settings(copy))
    assert drafted["drafter"] == "draft_model"
    assert drafted["memory"]["kv_cache"] * 3 == plain["memory"]["kv_cache"] * 4, "three layers, and one of the drafter"
    assert drafted["memory"]["weights"] > plain["memory"]["weights"]
    with pytest.raises(ConfigError, match=r"kv_cache_tokens.*GB \(full [\d.]+, draft [\d.]+\).*free"):
        inspect_model(settings(copy, kv_cache_tokens=10**12))


def test_a_gguf_file_drafts_for_the_same_model(tmp_path: Path) -> None:
    path = to_layout("llama", reference("llama")).write(tmp_path / "tiny.gguf")
    config = settings(path, path, max_model_len=64)
    got, info = answer(config)
    assert info["drafter"] == "draft_model"
    assert got.spec.accepted == got.spec.drafted > 8
    assert resolve_method("auto", default_registry(), tmp_path).method == "draft_model"


def test_a_hub_id_is_fetched_like_any_model(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []
    original = artifact_module.open_artifact

    def open_artifact(model: str, revision: str | None = None, timeout: float = 10.0, progress: object = None):  # type: ignore[no-untyped-def]
        asked.append((model, timeout))
        return original(str(copy) if model == "someone/drafter" else model)

    monkeypatch.setattr(artifact_module, "open_artifact", open_artifact)
    got, info = answer(settings("someone/drafter", download_timeout=3.0))
    assert info["drafter"] == "draft_model" and got.spec.drafted > 0
    assert ("someone/drafter", 3.0) in asked


def test_nothing_is_fetched_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "_drafter_weights", lambda config, progress: pytest.fail("was looked for"))
    assert answer(settings("someone/drafter", spec_tokens=0), 2)[1]["drafter"] == "none"


def test_int8_targets_get_an_int8_drafter(copy: Path) -> None:
    got, info = answer(settings(copy, dtype="int8"))
    assert (info["dtype"], info["drafter"]) == ("int8", "draft_model")
    assert got.spec.drafted > 0


def broken(copy: Path, fault: str) -> str:
    """Damage a drafter; returns what the error must say."""
    config = json.loads((copy / "config.json").read_text())
    if fault == "unknown architecture":
        config |= {"model_type": "rwkv9", "architectures": ["Rwkv9ForCausalLM"]}
    elif fault == "a head, not a model":
        config |= {"architectures": ["LlamaForCausalLMEagle3"]}
    elif fault == "missing field":
        del config["num_attention_heads"]
    elif fault == "another size":
        config["hidden_size"] += 64
    elif fault == "cut file":
        whole = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif fault == "no tokenizer":
        for file in copy.glob("tokenizer*"):
            file.unlink()
    (copy / "config.json").write_text(json.dumps(config))
    return {
        "unknown architecture": "rwkv9",
        "a head, not a model": "LlamaForCausalLMEagle3",
        "missing field": "num_attention_heads",
        "another size": "has shape",
        "cut file": "model.safetensors",
        "no tokenizer": "tokenizer.json",
    }[fault]


@pytest.mark.parametrize(
    "fault",
    ["unknown architecture", "a head, not a model", "missing field", "another size", "cut file", "no tokenizer"],
)
def test_s46_a_wrong_drafter_is_one_line_that_names_it(fault: str, copy: Path) -> None:
    expected = broken(copy, fault)
    with pytest.raises(DraftError) as caught:
        Engine.build(settings(copy))
    message = str(caught.value)
    assert str(copy) in message and expected in message
    assert "\n" not in message


def test_a_path_that_is_not_there_or_holds_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        Engine.build(settings(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DraftError, match="empty"):
        Engine.build(settings(tmp_path / "empty"))
    with pytest.raises(DraftError, match="spec_model"):
        Engine.build(settings(None, spec_method="draft_model"))
    with pytest.raises(ConfigError, match="spec_tokens"):
        Engine.build(settings(tiny_model(TARGET), spec_tokens=65))


def test_detection_wants_config_and_weights(copy: Path, tmp_path: Path) -> None:
    registry = default_registry()
    assert registry.detect(copy) == "draft_model"
    assert registry.get("draft_model").fallback
    sharded = tiny_model(TinyModel(shards=2))
    assert registry.detect(sharded) == "draft_model"
    for name in ("config.json", "model.safetensors"):
        less = tmp_path / f"without-{name}"
        shutil.copytree(copy, less)
        (less / name).unlink()
        with pytest.raises(DraftError, match=less.name):
            registry.detect(less)
