"""The command itself: help, version, summary lines."""

from __future__ import annotations

import pytest

from paceline.cli.main import main
from paceline.cli.summary import answer_line, conversation_lines, score_lines, summary_lines, totals
from paceline.core.stats import SpecStats
from paceline.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, SpeculativeMetrics


def _output(tokens: int, seconds: float, spec: SpecStats) -> RequestOutput:
    metrics = RequestMetrics(3, tokens, 0, 0.25, seconds, SpeculativeMetrics.of(spec, 2))
    return RequestOutput("r", "p", (1, 2, 3), (CompletionOutput(0, "", (), "stop"),), metrics, seed=5)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "generate" in capsys.readouterr().out
    assert main(["generate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--spec-method" in shown
    assert "--tensor-parallel-size" not in shown
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("paceline 0.")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert "generate" in shown.out + shown.err


def test_the_summary_adds_up_over_requests() -> None:
    first = SpecStats(4, 3, 2, 0, 1, 4, [2, 1], [2, 2], [2, 1], generated=7)
    second = SpecStats(1, 0, 1, 0, 0, 2, [0], [1], [], generated=3)
    outputs = [_output(7, 2.0, first), _output(3, 1.0, second)]
    figures = totals(outputs)
    assert (figures["completion_tokens"], figures["seconds"], figures["tokens_per_second"]) == (10, 2.0, 5.0)
    assert (figures["forwards"], figures["tokens_per_forward"]) == (4, 2.5)
    assert figures["acceptance_by_position"] == pytest.approx([2 / 3, 1 / 2])
    gains, proposals = summary_lines(outputs)
    assert "10 tokens in 2.00 s" in gains
    assert "2.50 tokens per forward (4 forwards" in gains
    assert proposals == "[accepted 3 of 5 proposals (60%); by position 67% 50%]"


def test_time_saved_is_told_where_costs_are_known() -> None:
    gained, lost = SpecStats(time_saved_ms=1700.0), SpecStats(time_saved_ms=-450.0)
    outputs = [_output(3, 1.0, gained), _output(3, 1.0, lost), _output(3, 1.0, SpecStats())]
    assert totals(outputs)["time_saved_ms"] == 1250.0
    assert "saved, about 1.25 s less than plain)" in summary_lines(outputs)[0]
    assert "about 0.45 s more than plain" in summary_lines(outputs[1:2])[0]
    assert "about" not in summary_lines(outputs[2:])[0]
    assert "about" not in summary_lines([_output(3, 1.0, SpecStats(time_saved_ms=0.2))])[0]


def test_without_speculation_the_summary_is_one_line() -> None:
    assert len(summary_lines([_output(3, 1.0, SpecStats())])) == 1


def test_answers_of_a_conversation_add_up_one_after_the_other() -> None:
    spec = SpecStats(4, 3, 2, 0, 1, 4, [2, 1], [2, 2], [2, 1], generated=7)
    first, second = _output(7, 2.0, spec), _output(3, 1.0, SpecStats(generated=3))
    assert totals([first, second], in_turn=True)["seconds"] == 3.0
    assert conversation_lines([first, second])[0].startswith("[2 answers · 10 tokens in 3.00 s · 3.3 tokens/s")
    assert conversation_lines([first])[0].startswith("[1 answer · ")
    assert "3 of 4 proposals accepted · ended by stop]" in answer_line(first)


def test_log_probabilities_have_a_line_per_token() -> None:
    entry = {7: Logprob(-0.5, 1, " a"), 8: Logprob(float("-inf"), 2, "\n")}
    choices = tuple(CompletionOutput(place, "", (7,), "stop", None, (entry,)) for place in range(2))
    metrics = RequestMetrics(2, 1, 0, 0.25, 1.0, SpeculativeMetrics.of(SpecStats(), 2))
    output = RequestOutput("r", "p", (1, 2), choices, metrics, prompt_logprobs=(None, {2: Logprob(-1.0, 3)}))
    line = "  ' a' -0.500 #1 · '\\n' -inf"
    assert score_lines(output) == [
        "[log-probabilities of the prompt]",
        "  2 -1.000 #3",
        "[log-probabilities of sample 1]",
        line,
        "[log-probabilities of sample 2]",
        line,
    ]
    assert score_lines(_output(1, 1.0, SpecStats())) == []
