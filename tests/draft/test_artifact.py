"""A drafter's directory and the records of loading one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.draft.kit import VIEW

from paceline.core.errors import ConfigError
from paceline.draft.artifact import DraftArtifact, LoadRequest


def test_has_names_files_only(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.json").write_text("{}")
    artifact = DraftArtifact(tmp_path)
    assert artifact.has("weights.safetensors")
    assert artifact.has("sub/x.json")
    assert not artifact.has("sub")
    assert not artifact.has("absent")


@pytest.mark.parametrize("text", [None, "", "{broken", "[1, 2]", "[" * 100_000, b"\xff\xfe\x00"])
def test_an_absent_or_unreadable_config_is_none(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert DraftArtifact(tmp_path).config() is None


def check_read_once(artifact_type: type[DraftArtifact], directory: Path) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({"model_type": "first"}))
    artifact = artifact_type(directory)
    assert artifact.config() == {"model_type": "first"}
    file.write_text(json.dumps({"model_type": "second"}))
    assert artifact.config() == {"model_type": "first"}
    file.unlink()
    missing = artifact_type(directory)
    assert missing.config() is None
    file.write_text("{}")
    assert missing.config() is None, "that there is no config is read once too"


def test_the_config_is_read_at_most_once(tmp_path):
    check_read_once(DraftArtifact, tmp_path)


def test_reading_the_config_again_is_noticed(tmp_path):
    class Forgetful(DraftArtifact):
        def config(self):
            return self._parse()

    with pytest.raises(AssertionError):
        check_read_once(Forgetful, tmp_path)


@pytest.mark.parametrize(("wanted", "settled"), [(None, 6), (0, 0), (1, 1), (64, 64)])
def test_a_depth_is_the_one_asked_for_or_the_default(wanted, settled):
    assert LoadRequest(None, VIEW, num_draft_tokens=wanted).settle_tokens(6, 64) == settled


@pytest.mark.parametrize("wanted", [-1, 1.9, "4", True, 65, 10**4])
def test_a_depth_out_of_range_names_the_setting(wanted):
    with pytest.raises(ConfigError, match=r"spec_tokens.*\[0, 64\]"):
        LoadRequest(None, VIEW, num_draft_tokens=wanted).settle_tokens(6, 64)
