"""``--config``: flags over the file over variables, and refusals that name the file and the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engine.fake_engine import FakeEngine

from paceline.cli.main import main
from paceline.cli.settings import read_config, read_value
from paceline.core.errors import ConfigError, RequestError
from paceline.testing.models import tiny_model


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "paceline.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def test_flags_win_over_the_file_and_the_file_over_variables(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_SPEC_TOKENS", "1")
    monkeypatch.setenv("PACELINE_MAX_NUM_SEQS", "1")
    monkeypatch.setenv("PACELINE_BLOCK_SIZE", "32")
    path = _file(tmp_path, "spec-tokens: 2\nmax_num_seqs: 2\nmodel: here\nsampling: {temp: 0.5, top-k: 7}\n")
    assert main(["generate", "hi", "--config", path, "--spec-tokens", "3", "--top-k", "9"]) == 0
    config, params = engine.config, engine.seen[0].params
    assert (config.spec.tokens, config.scheduler.max_num_seqs, config.cache.block_size) == (3, 2, 32)
    assert (config.model.model, params.temperature, params.top_k) == ("here", 0.5, 9)
    assert main(["generate", "hi", "--config", path, "--model", "there"]) == 0
    assert (engine.config.model.model, engine.config.spec.tokens) == ("there", 2)


def test_a_flag_wins_over_the_files_speculative_config_and_the_other_way_round(
    engine: FakeEngine, tmp_path: Path
) -> None:
    path = _file(tmp_path, "speculative_config: {method: ngram, num_speculative_tokens: 5}\n")
    assert main(["generate", "hi", "--config", path, "--spec-tokens", "2"]) == 0
    assert (engine.config.spec.method, engine.config.spec.tokens) == ("ngram", 2)
    path = _file(tmp_path, "spec_tokens: 5\n")
    assert main(["generate", "hi", "--config", path, "--speculative-config", '{"num_speculative_tokens": 3}']) == 0
    assert engine.config.spec.tokens == 3


def test_the_models_options_are_below_the_files(engine: FakeEngine, tmp_path: Path) -> None:
    engine.default_params = {"temperature": 0.3, "top_k": 5}
    path = _file(tmp_path, "sampling:\n  temperature: 0.8\n  stop: [x, yy]\n  logit_bias: {5: -1}\n")
    assert main(["generate", "hi", "--config", path]) == 0
    params = engine.seen[0].params
    assert (params.temperature, params.top_k, params.stop_strings) == (0.8, 5, ("x", "yy"))
    assert params.logit_bias == {5: -1.0}


def test_null_and_an_empty_file_give_nothing(tmp_path: Path) -> None:
    assert read_config(_file(tmp_path, "")).engine == {}
    asked = read_config(_file(tmp_path, "spec_tokens:\nsampling:\n  seed:\n"))
    assert (asked.engine, asked.sampling) == ({}, {})
    assert read_config(_file(tmp_path, "tensor-parallel-size: 1\nkv_cache_dtype: auto\n")).engine == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec_tokns: 3", "{file}: spec_tokns: unknown setting; did you mean 'spec_tokens'?"),
        ("spec-tokns: 3", "{file}: spec-tokns: unknown setting; did you mean 'spec_tokens'?"),
        ("samplin: {seed: 3}", "{file}: samplin: unknown section; did you mean 'sampling'?"),
        ("engine: {seed: 3}", "{file}: engine: unknown section"),
        ("sampling: {tempratur: 1}", "{file}: sampling.tempratur: unknown option; did you mean 'temperature'?"),
        ("spec-tokens: many", "{file}: spec-tokens: must be int, not 'many'"),
        ("num_draft_tokens: 65", "{file}: num_draft_tokens: must be at most 64"),
        ("dtype: float16", "{file}: dtype: must be one of"),
        ("spec_method: off", "{file}: spec_method: must be str, not False"),
        ("sampling: {temp: hot}", "{file}: sampling.temp: must be a finite number"),
        ("sampling: 3", "{file}: sampling: must hold options"),
        ("tensor_parallel_size: 2", "{file}: tensor_parallel_size: tensor parallelism has not landed"),
        ("speculative_config: {methd: x}", "{file}: speculative_config.methd: unknown key"),
        ("spec_tokens: 3\nnum-draft-tokens: 4", "{file}: num-draft-tokens: is also given as spec_tokens"),
        ("sampling: {temp: 1, temperature: 1}", "{file}: sampling.temperature: is also given as temp"),
        ("spec_tokens: 3\nspec_tokens: 4", "{file}: spec_tokens: stands there twice"),
        ("sampling:\n  seed: 1\n  seed: 2", "{file}: seed: stands there twice"),
        ("spec_tokens: 3\nspeculative_config: {num_speculative_tokens: 4}", "{file}: speculative_config: gives 4"),
        ("- a\n- b", "{file}: must hold settings"),
        ("a: [", "{file}: is not YAML"),
        ("&a [*a]", "{file}: must hold settings"),
        ("7: 3", "{file}: 7: unknown setting"),
    ],
)
def test_what_cannot_be_taken_is_named_with_its_file(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = _file(tmp_path, text)
    assert main(["chat", "--config", path]) == 2
    told = capsys.readouterr().err
    assert told.startswith("paceline: " + message.format(file=path))
    assert told.count("\n") == 1


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", "/no/such.yaml"]) == 2
    assert "config: /no/such.yaml cannot be read" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        read_config("/")


def test_doctor_plans_for_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"model: {tiny_model('llama')}\nkv_cache_tokens: 256\nnum_threads: 1\ndtype: float32\nsampling: {{seed: 4}}\n"
    )
    assert main(["doctor", "--json", "--config", _file(tmp_path, text)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["memory"]["kv_tokens"] == 256
    assert report["sampling"] == {"seed": 4}


def test_values_as_people_type_them() -> None:
    typed = {"0.5": 0.5, "1e-5": 1e-5, "true": True, "x y": "x y", '"5"': "5", "[a, 5]": ["a", 5], "{5: -1}": {5: -1}}
    assert {text: read_value(text) for text in typed} == typed
    with pytest.raises(RequestError, match="is not YAML"):
        read_value("[a")
