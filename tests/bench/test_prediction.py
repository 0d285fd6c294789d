"""``bench prediction``: scripted edits, the replay of rounds, and a whole measurement of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.edits import edited_lines
from paceline.bench.prediction import PredictionSettings, measure_prediction
from paceline.bench.prediction_report import Totals, document, markdown
from paceline.bench.replay import replay
from paceline.bench.workloads import REPETITIVE, overlap
from paceline.cli.main import main
from paceline.core.errors import ConfigError
from paceline.testing.models import tiny_model

LINES = [f"    line {number} holds some words" for number in range(300)]
_LOAD = ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3))


def test_edits_are_as_many_as_asked_for_of_every_kind_and_the_same_every_time() -> None:
    changed, done = edited_lines(LINES, 5, seed=1)
    assert 40 <= done.total() <= 80
    assert len(done) == 6 and done["word replaced"] > done["line deleted"]
    assert (changed, done) == edited_lines(LINES, 5, seed=1)
    assert changed != edited_lines(LINES, 5, seed=2)[0]
    kept = [line for line in changed if line in LINES]
    assert len(LINES) - done.total() <= len(kept) < len(LINES)


def test_a_line_without_words_can_be_edited() -> None:
    assert edited_lines([""] * 40, 1, seed=0)[1].total() == 40


def test_the_replay_counts_the_rounds_of_a_target_that_draws_the_text() -> None:
    text = list(range(100, 400))
    found = replay(text, text)
    assert found.forwards == len(found.seconds) < 16
    assert found.fill.accepted_prediction_tokens == 299, "all but the first, which no span covers"
    assert found.tokens_per_forward == 299 / found.forwards
    assert 0 < found.mean_microseconds <= found.worst_microseconds
    assert replay([7, 8, 9], text).forwards == 299


def settings(tmp_path: Path, **more: object) -> PredictionSettings:
    prompts = tmp_path / "some.jsonl"
    lines = [json.dumps({"name": f"p{n}", "prompt": f"the people of {n} other places"}) for n in range(12)]
    prompts.write_text("\n".join(lines), "utf-8")
    sizes = {"lines": 2, "max_tokens": 40, "repeats": 2, "every": (2,), "threads": 1, "prompts": (str(prompts),)}
    return PredictionSettings(model=str(tiny_model("llama")), dtype="float32", **(sizes | more))  # type: ignore[arg-type]


def test_a_measurement_in_one_engine(tmp_path: Path) -> None:
    told: list[str] = []
    found = measure_prediction(settings(tmp_path), lambda stage, done, total: told.append(stage))
    count = len(found.answers)
    assert [len(runs) for runs in (found.plain, found.runs[2])] == [count, count]
    assert sum(len(answer.lines) for answer in found.answers) >= 2
    assert found.failure is None and found.same_tokens
    plain, predicted = Totals.of(found.plain), Totals.of(found.runs[2])
    assert (plain.tokens_per_forward, plain.accepted) == (1.0, 0)
    assert predicted.tokens_per_forward >= 1.0 and predicted.accepted > 0, "its text is mostly no text: few ids survive"
    assert set(told) == {"recording plain answers", "measuring"}
    shown = document(found, _LOAD)
    assert json.loads(json.dumps(shown)) == shown
    case = shown["cases"][0]
    assert case["speedup"]["low"] <= case["speedup"]["value"] <= case["speedup"]["high"]
    assert "an edit in 2 lines" in markdown(found, _LOAD)


def test_other_tokens_fail_where_equality_is_promised(tmp_path: Path) -> None:
    found = measure_prediction(settings(tmp_path, repeats=1))
    found.engine["exactness"] = "bitwise"
    assert found.failure is None
    object.__setattr__(found.runs[2][0][0], "same_tokens", False)
    assert "other tokens" in str(found.failure)


def test_answers_that_go_in_circles_are_left_out(tmp_path: Path) -> None:
    found = measure_prediction(settings(tmp_path, repeats=1, max_tokens=200, lines=40))
    for answer in found.answers:
        assert overlap(answer.prompt.ids, answer.tokens).kind != REPETITIVE
    assert len(found.left_out) + len(found.answers) == 12 and found.left_out
    assert "going in circles" in markdown(found, _LOAD)


@pytest.mark.parametrize("wrong", [{"lines": 0}, {"repeats": 0}, {"every": ()}, {"every": (3, 0)}, {"max_tokens": 5}])
def test_settings_that_cannot_be_honoured_are_refused_by_name(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, **wrong).check()
    assert caught.value.field in wrong


def test_the_command_ends_with_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = settings(tmp_path)
    sizes = ["--lines", "1", "--max-tokens", "30", "--repeats", "1", "--every", "3", "--threads", "1"]
    model = ["--model", chosen.model, "--dtype", "float32", "--prompts", chosen.prompts[0]]
    assert main(["bench", "prediction", *model, "--report", str(tmp_path / "report.md"), *sizes]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (shown["bench"], shown["same_tokens"], shown["cases"][0]["every"]) == ("prediction", True, 3)
    assert "Predicted outputs" in (tmp_path / "report.md").read_text("utf-8")
    assert main(["bench", "prediction", "--every", "3,x"]) == 2
    assert "every: must be whole numbers" in capsys.readouterr().err
