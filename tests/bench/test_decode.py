"""The benchmark end to end on a tiny model, and what it refuses. No times are compared with anything."""

from __future__ import annotations

import json

import pytest

from paceline.bench.decode import DecodeSettings, Measurement, measure_decode
from paceline.bench.figures import Figures
from paceline.bench.report import document, first_failure
from paceline.core.errors import ConfigError, RequestError
from paceline.testing.models import tiny_model


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "some.jsonl"
    texts = ("the rain in the main", "repeat this: one two three one two three", "x" * 1100, "say it again, again")
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), "utf-8")
    return str(path)


def _settings(prompts: str, **changes: object) -> DecodeSettings:
    common = {"model": str(tiny_model("llama")), "dtypes": ("float32",), "prompts": (prompts,), "threads": 1}
    sizes = {"max_tokens": 20, "min_tokens": 18, "repeats": 2, "ignore_eos": True, "device": "cpu"}
    return DecodeSettings(**(common | sizes | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found(prompts: str) -> Measurement:
    return measure_decode(_settings(prompts, batch=2))


def test_every_arm_runs_every_prompt_as_often_as_asked(found: Measurement) -> None:
    names = [arm["name"] for arm in found.arms]
    assert names[0] == "plain float32"
    assert names[-2:] == ["transformers float32", "transformers lookup float32"]
    assert set(found.runs) == {(name, place) for name in names for place in (0, 1, 3)}
    assert {len(runs) for runs in found.runs.values()} == {2}


def test_a_prompt_that_does_not_fit_is_left_out_with_its_reason(found: Measurement) -> None:
    assert found.subjects[2].status == "longer than the context of 1024 tokens"


def test_all_arms_generate_the_same_number_of_tokens(found: Measurement) -> None:
    assert {run.count for runs in found.runs.values() for run in runs} == {20}


def test_drafters_give_the_tokens_of_plain_decoding(found: Measurement) -> None:
    figures = Figures(found)
    own = [arm["name"] for arm in found.own_arms()]
    assert all(figures.same_tokens(name, place) for name in own for place in (0, 1, 3))
    assert first_failure(found) is None


def test_batches_are_full_groups(found: Measurement) -> None:
    assert {batch.group for batch in found.batches} == {0}
    assert len(found.batches) == 2 * len(found.own_arms())
    assert {batch.tokens for batch in found.batches} == {40}
    assert all(batch.equal for batch in found.batches)


def test_the_document_can_be_printed(found: Measurement) -> None:
    load = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert json.loads(json.dumps(document(found, load)))["all_equal"] is True


def test_an_answer_that_is_too_short_is_not_measured(prompts: str) -> None:
    with pytest.raises(RequestError, match=r"none is left to measure.*fewer than 21"):
        measure_decode(_settings(prompts, min_tokens=21, peers=False))


def test_a_batch_larger_than_what_is_left_is_refused(prompts: str) -> None:
    with pytest.raises(ConfigError, match="batch: is 4, but only 3 prompts are left"):
        measure_decode(_settings(prompts, batch=4, repeats=1, peers=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "repeats: must be at least 1"),
        ({"max_tokens": 1}, "max_tokens: must be at least 2"),
        ({"min_tokens": 16}, "min_tokens: must be at least 17 to compare with peers"),
        ({"batch": -1}, "batch: must be at least 0"),
        ({"limit": 0}, "limit: must be at least 1"),
        ({"classes": ("copied",)}, "classes: must be of copy-heavy, free, repetitive"),
        ({"dtypes": ()}, "dtype: is empty"),
        ({"prompts": ()}, "prompts: is empty"),
        ({"methods": ("guessing",)}, "unknown drafter kind 'guessing'"),
    ],
)
def test_settings_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodeSettings(**changes).check()  # type: ignore[arg-type]


def test_plain_decoding_alone_can_be_asked_for() -> None:
    assert DecodeSettings(methods=("none",)).drafters == ()
    assert DecodeSettings().drafters
