"""Opening models: what a path or name stands for, what ends a sequence, and errors that say what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models.gguf_files import GGUFLayout, floats, tiny_tokenizer

from paceline.core.errors import ModelError
from paceline.models.artifact import open_artifact
from paceline.testing.models import TinyModel, tiny_model

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 8}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_json(path / "config.json", CONFIG)
    save_file({"weight": torch.arange(4.0)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_model_opens_with_all_its_tensors(shards: int, tmp_path: Path) -> None:
    path = tiny_model(TinyModel(shards=shards), tmp_path)
    artifact = open_artifact(str(path))
    assert (path / "model.safetensors.index.json").exists() == (shards > 1)
    assert artifact.path == path
    assert artifact.config["model_type"] == "llama"
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= set(artifact.weights.names())


def test_a_directory_opens(directory: Path) -> None:
    artifact = open_artifact(str(directory))
    assert artifact.config == CONFIG
    assert artifact.generation_config == {}
    assert artifact.weights.get("weight").tolist() == [0, 1, 2, 3]


def test_identity_follows_the_content_and_not_the_place(directory: Path, tmp_path: Path) -> None:
    identity = open_artifact(str(directory)).identity
    assert identity.startswith("model@")
    shutil.copytree(directory, tmp_path / "elsewhere" / "model")
    assert open_artifact(str(tmp_path / "elsewhere" / "model")).identity == identity
    save_file({"weight": torch.arange(4.0) + 1}, directory / "model.safetensors")
    assert open_artifact(str(directory)).identity != identity


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, {}, (5, 6)),
        ({"eos_token_id": 5}, {}, {}, (5,)),
        ({}, {"eos_token_id": [7, 7, 8]}, {}, (7, 8)),
        ({"eos_token_id": None}, {"eos_token_id": 0}, {}, (0,)),
        ({}, {"text_config": {"eos_token_id": 9}}, {}, (9,)),
        ({"eos_token_id": 5}, {}, {"eos_token": "<end>"}, (5, 3)),
        ({"eos_token_id": 3}, {}, {"eos_token": {"content": "<end>"}}, (3,)),
        ({}, {}, {"eos_token": "<other>", "added_tokens_decoder": {"11": {"content": "<other>"}}}, (11,)),
        ({}, {}, {"eos_token": "word"}, (1,)),
        ({}, {}, {"eos_token": "unheard of"}, ()),
        ({}, {}, {}, ()),
    ],
)
def test_what_ends_a_sequence(
    directory: Path,
    generation: dict[str, Any],
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    expected: tuple[int, ...],
) -> None:
    write_json(directory / "config.json", CONFIG | config)
    write_json(directory / "generation_config.json", generation)
    write_json(directory / "tokenizer_config.json", tokenizer)
    tables = {"added_tokens": [{"id": 3, "content": "<end>"}], "model": {"vocab": {"word": 1}}}
    write_json(directory / "tokenizer.json", tables)
    assert open_artifact(str(directory)).eos_ids() == expected


def test_a_gguf_file_or_its_directory_opens(tmp_path: Path) -> None:
    keys = ["context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count"]
    metadata: dict[str, Any] = {f"llama.{key}": 1 for key in keys} | {"general.architecture": "llama"}
    metadata["llama.attention.layer_norm_rms_epsilon"] = 1e-6
    layout = GGUFLayout(metadata | tiny_tokenizer(), {"token_embd.weight": floats(torch.ones(3, 1).numpy())})
    layout.metadata["tokenizer.ggml.eot_token_id"] = 4
    path = layout.write(tmp_path / "tiny.Q4_1.gguf")
    for name in (path, tmp_path):
        artifact = open_artifact(str(name))
        assert artifact.path == path
        assert artifact.identity.startswith("tiny.Q4_1@")
        assert artifact.weights.names() == ["model.embed_tokens.weight"]
        assert artifact.eos_ids() == (2, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "file not found"), ("", "JSON"), ("[1]", "JSON object"), ("{", "JSON"), ("\x00\x01", "JSON")],
)
def test_a_bad_config_is_named(directory: Path, content: str | None, message: str) -> None:
    (directory / "config.json").unlink()
    if content is not None:
        (directory / "config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        open_artifact(str(directory))


def test_what_is_no_model_is_refused_with_advice(directory: Path) -> None:
    with pytest.raises(ModelError, match="no such directory or file"):
        open_artifact("./nowhere/at/all")
    with pytest.raises(ModelError, match="give the directory"):
        open_artifact(str(directory / "model.safetensors"))


@pytest.mark.parametrize("model", ["demo", "local"])
def test_a_revision_that_cannot_be_honoured_is_refused(model: str, directory: Path) -> None:
    with pytest.raises(ModelError, match="revision 'v2'"):
        open_artifact(str(directory) if model == "local" else model, revision="v2")
