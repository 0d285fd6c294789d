"""Result records: the figures follow from the row's statistics by the definitions, and everything is plain JSON."""

from __future__ import annotations

import json

import pytest

from paceline.core.stats import SpecStats
from paceline.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, SpeculativeMetrics, StreamDelta

_SPEC = SpecStats(
    drafted=9,
    accepted=5,
    rounds=3,
    plain_rounds=2,
    target_calls=6,
    acceptance_lengths=[3, 0, 2],
    drafted_by_pos=[3, 3, 3],
    accepted_by_pos=[2, 2, 1],
    generated=11,
)


def _output(time_to_first: float | None = 0.5, tokens: int = 11) -> RequestOutput:
    metrics = RequestMetrics(4, tokens, 0, time_to_first, 2.5, SpeculativeMetrics.of(_SPEC, 4))
    choice = CompletionOutput(0, "hi", (1, 2), "stop", "x")
    return RequestOutput("r1", "p", (7, 8, 9, 3), (choice,), metrics, seed=2**64 - 1, error=ValueError("why"))


def test_speculation_figures_follow_the_definitions() -> None:
    _SPEC.check()
    figures = SpeculativeMetrics.of(_SPEC, 4)
    assert figures.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert figures.draft_acceptance_rate == pytest.approx(5 / 9)
    assert figures.acceptance_histogram == (1, 0, 1, 1, 0)
    assert sum(figures.acceptance_histogram) == figures.num_spec_steps == 3
    assert sum(i * n for i, n in enumerate(figures.acceptance_histogram)) == figures.num_accepted_draft_tokens == 5
    assert (figures.num_draft_tokens, figures.num_spec_tokens) == (9, 4)
    assert (figures.forwards, figures.forwards_saved, figures.tokens_per_forward) == (5, 5, 11 / 5)
    assert figures.acceptance_by_position == pytest.approx((2 / 3, 2 / 3, 1 / 3))


def test_without_rounds_nothing_is_divided_by_zero() -> None:
    figures = SpeculativeMetrics.of(SpecStats(), 0)
    assert (figures.mean_acceptance_length, figures.draft_acceptance_rate, figures.acceptance_histogram) == (1, 0, (0,))
    assert (figures.tokens_per_forward, figures.acceptance_by_position) == (0.0, ())


def test_time_saved_and_phases_are_those_of_the_row_and_add_up_over_samples() -> None:
    timed = SpecStats(time_saved_ms=-3.0, phase_ms={"draft": 1.0, "verify": 9.0, "rounds": 2.0})
    figures = SpeculativeMetrics.of(timed, 4)
    assert (figures.time_saved_ms, figures.phase_ms) == (-3.0, {"draft": 1.0, "verify": 9.0, "rounds": 2.0})
    unknown = SpeculativeMetrics.of(SpecStats(), 4)
    assert (unknown.time_saved_ms, unknown.phase_ms) == (None, None)
    both = SpeculativeMetrics.merged([figures, unknown, figures])
    assert (both.time_saved_ms, both.phase_ms) == (-6.0, {"draft": 2.0, "verify": 18.0, "rounds": 4.0})
    assert SpeculativeMetrics.merged([unknown, unknown]).time_saved_ms is None


def test_shortcuts_are_the_first_choice() -> None:
    output = _output()
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("hi", (1, 2), "stop", "x")
    assert output.logprobs is None
    assert StreamDelta("", (), output).finish_reason == "stop"
    assert StreamDelta("a", (1,)).finish_reason is None


def test_times() -> None:
    assert _output().metrics.time_per_output_token == pytest.approx(0.2)
    assert _output().metrics.tokens_per_second == pytest.approx(5.0)
    assert _output(tokens=1).metrics.time_per_output_token is None
    assert _output(time_to_first=None).metrics.tokens_per_second == 0


def test_everything_is_plain_json() -> None:
    data = json.loads(json.dumps(_output().to_dict()))
    assert data["outputs"][0]["token_ids"] == [1, 2]
    assert data["prompt_token_ids"] == [7, 8, 9, 3]
    assert data["metrics"]["speculative_decoding"]["num_spec_steps"] == 3
    assert data["metrics"]["time_per_output_token"] == pytest.approx(0.2)
    assert (data["seed"], data["error"]) == (2**64 - 1, "why")
