"""Fetching from the hub, against a local stand-in: files, revisions, resuming, time-outs, checksums, offline use."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from paceline.core.errors import ModelError
from paceline.models import hub as hub_module
from paceline.models.artifact import open_artifact, open_directory
from paceline.models.hub import HubOptions, cached_model, fetch_model, fetch_tokenizer, is_hub_id
from paceline.testing.hub import HubStandIn, hub_stand_in

REPO = "someone/tiny-model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_stand_in() as stand_in:
        yield stand_in


@pytest.fixture
def options(hub: HubStandIn, tmp_path: Path) -> HubOptions:
    return HubOptions(hub.endpoint, tmp_path / "hub-cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files of a model, and some that nobody needs."""
    path = tmp_path / "published"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "generation_config.json").write_text('{"eos_token_id": 3}')
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    (path / "README.md").write_text("read me")
    (path / "model.fp16.safetensors").write_bytes(b"another precision")
    save_file({"weight": torch.arange(2000.0)}, path / "model.safetensors")
    return path


def names(path: Path) -> set[str]:
    return {item.name for item in path.iterdir()}


NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def test_what_a_model_needs_is_fetched_and_nothing_else(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    commit = hub.publish(REPO, model)
    snapshot = fetch_model(REPO, options=options)
    assert snapshot.commit == commit
    assert names(snapshot.path) == NEEDED | {"model.safetensors"}
    assert open_directory(snapshot.path).weights.get("weight").tolist() == list(range(2000))


def test_shards_come_with_their_index(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    shard = "model-00001-of-00001.safetensors"
    (model / "model.safetensors").rename(model / shard)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": shard}}))
    hub.publish(REPO, model)
    snapshot = fetch_model(REPO, options=options)
    assert names(snapshot.path) == NEEDED | {shard, "model.safetensors.index.json"}
    assert cached_model(REPO, options=options) == snapshot
    (snapshot.path / shard).unlink()
    assert cached_model(REPO, options=options) is None


def test_files_in_the_cache_are_not_fetched_again(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    fetch_model(REPO, options=options)
    hub.requests.clear()
    fetch_model(REPO, options=options)
    assert not [request for request in hub.requests if request.method == "GET" and "/resolve/" in request.path]


def test_revisions_are_told_apart(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    old = hub.publish(REPO, model, "v1")
    save_file({"weight": torch.zeros(5)}, model / "model.safetensors")
    main = hub.publish(REPO, model)
    assert fetch_model(REPO, options=options).commit == main
    for revision in ("v1", old):
        snapshot = fetch_model(REPO, revision, options=options)
        assert snapshot.commit == old
        assert cached_model(REPO, revision, options) == snapshot
    with pytest.raises(ModelError, match=r"revision 'v3' does not exist.*--revision"):
        fetch_model(REPO, "v3", options=options)


def test_an_unknown_model_is_named(hub: HubStandIn, options: HubOptions) -> None:
    with pytest.raises(ModelError, match=f"{REPO}: no such directory here and no such model on the hub.*HF_TOKEN"):
        fetch_model(REPO, options=options)


@pytest.mark.parametrize(("kept", "message"), [("*.gguf", "only GGUF files"), ("*.bin", "safetensors form")])
def test_a_model_without_safetensors_is_refused(
    hub: HubStandIn, options: HubOptions, model: Path, kept: str, message: str
) -> None:
    for path in model.glob("*.safetensors"):
        path.unlink()
    if kept == "*.gguf":
        (model / "m.gguf").write_bytes(b"GGUF")
    hub.publish(REPO, model)
    with pytest.raises(ModelError, match=message):
        fetch_model(REPO, options=options)


def test_a_broken_transfer_is_resumed(
    hub: HubStandIn, options: HubOptions, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what arrived is kept in such pieces
    hub.publish(REPO, model)
    hub.faults.cut_once["model.safetensors"] = 3000
    snapshot = fetch_model(REPO, options=options)
    assert open_directory(snapshot.path).weights.get("weight").tolist() == list(range(2000))
    starts = [r.start for r in hub.requests if r.method == "GET" and r.path.endswith("/model.safetensors")]
    assert starts == [0, 3000]


def test_a_wrong_checksum_is_found_and_the_file_removed(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    hub.faults.corrupt.add("model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors: was damaged on the way.*sha256"):
        fetch_model(REPO, options=options)
    assert cached_model(REPO, options=options) is None
    hub.faults.corrupt.clear()
    assert open_directory(fetch_model(REPO, options=options).path).weights.has("weight")


def test_a_file_that_cannot_be_had_stops_the_download(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    hub.faults.missing.add("tokenizer.json")
    with pytest.raises(ModelError, match=f"{REPO}: download failed.*run again"):
        fetch_model(REPO, options=options)


def test_a_hub_that_does_not_answer_is_given_up(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    hub.faults.delay = 30.0
    with pytest.raises(ModelError, match=r"did not answer within 0\.2 s; check the network"):
        fetch_model(REPO, timeout=0.2, options=options)


@pytest.mark.parametrize("fault", ["refused", "status"])
def test_a_hub_that_is_down_is_reported(hub: HubStandIn, options: HubOptions, model: Path, fault: str) -> None:
    if fault == "refused":
        options = HubOptions("http://127.0.0.1:9", options.cache_dir)
    hub.faults.status = 503
    with pytest.raises(ModelError, match=r"cannot be reached.*HF_ENDPOINT"):
        fetch_model(REPO, options=options)


def test_the_cache_serves_when_the_hub_does_not(
    hub: HubStandIn, options: HubOptions, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.publish(REPO, model)
    snapshot = fetch_model(REPO, options=options)
    hub.faults.status = 503
    assert fetch_model(REPO, options=options) == snapshot
    assert "using the cached revision" in caplog.text


def test_offline_never_asks(hub: HubStandIn, options: HubOptions, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(REPO, model)
    snapshot = fetch_model(REPO, options=options)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_model(REPO, options=options) == snapshot
    with pytest.raises(ModelError, match="someone/else: is not in the cache, and HF_HUB_OFFLINE"):
        fetch_model("someone/else", options=options)
    assert hub.requests == []


def test_progress_counts_the_bytes_to_fetch(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    reports: list[tuple[str, int, int]] = []
    snapshot = fetch_model(REPO, options=options, progress=lambda *report: reports.append(report))
    total = sum(path.stat().st_size for path in snapshot.path.iterdir())
    assert reports[0] == (f"Downloading {REPO}", 0, total)
    assert reports[-1] == (f"Downloading {REPO}", total, total)


def test_a_tokenizer_comes_without_weights(hub: HubStandIn, options: HubOptions, model: Path) -> None:
    hub.publish(REPO, model)
    assert names(fetch_tokenizer(REPO, options=options).path) == NEEDED
    assert cached_model(REPO, options=options) is None


def test_open_artifact_takes_a_hub_id(
    hub: HubStandIn, options: HubOptions, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.publish(REPO, model, "v1")
    monkeypatch.setattr(hub_module, "fetch_model", functools.partial(fetch_model, options=options))
    artifact = open_artifact(REPO, revision="v1")
    assert artifact.identity == f"{REPO}@{commit}"
    assert artifact.eos_ids() == (3,)


@pytest.mark.parametrize("name", ["org/name", "gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d"])
def test_hub_ids(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize("name", ["./x", "/x/y", "a/b/c", "a b", "", "x.gguf", "~/x", "a/../b", "org/", "a" * 200])
def test_what_is_no_hub_id(name: str) -> None:
    assert not is_hub_id(name)
