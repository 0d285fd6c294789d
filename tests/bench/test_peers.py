"""The peer generates exactly what it is asked for, with the model's own greedy tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.kit import TEXT

from paceline.bench.peers import ATTENTION, LOOKUP_TOKENS, PeerArm, PeerModel, best_settings
from paceline.core.errors import ConfigError
from paceline.testing.models import TinyModel, tiny_model

IDS = (10, 11, 12, 13, 10, 11, 12)


@pytest.fixture(scope="module")
def model() -> PeerModel:
    return PeerModel(tiny_model("llama"), "float32", "cpu")


@pytest.mark.parametrize("attention", ATTENTION)
def test_lookup_changes_no_token(model: PeerModel, attention: str) -> None:
    model.use_attention(attention)
    plain, lookup = (model.generate(IDS, 20, tokens) for tokens in (None, 5))
    assert plain.token_ids == lookup.token_ids
    assert plain.count == lookup.count == 20
    assert plain.first_count == 1
    assert 0 < plain.first_seconds < plain.seconds


def test_an_eos_does_not_end_a_run() -> None:
    first = PeerModel(tiny_model("llama"), "float32", "cpu").generate(IDS, 1, None).token_ids[0]
    ends_at_once = PeerModel(tiny_model(TinyModel(eos_token_ids=(first,))), "float32", "cpu")
    assert ends_at_once.generate(IDS, 8, None).count == 8


def test_every_setting_is_tried_once(model: PeerModel) -> None:
    trials, best = best_settings(model, TEXT, 4, tries=1)
    assert [(trial.attention, trial.lookup) for trial in trials[:2]] == [(name, None) for name in ATTENTION]
    assert [trial.lookup for trial in trials[2:]] == list(LOOKUP_TOKENS)
    assert best in trials[2:]


def test_an_arm_says_what_it_runs(model: PeerModel) -> None:
    arm = PeerArm(model, "sdpa", 5)
    assert arm.facts()["prompt_lookup_num_tokens"] == 5
    assert arm.name == "transformers lookup float32"
    assert arm.run(IDS, 6, False).count == 6


def test_a_model_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--no-peers"):
        PeerModel(tmp_path / "model.gguf", "float32", "cpu")
