"""When speculation is called losing, why, and how often somebody hears of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.engine.losing import DraftRound, LosingReport, LosingWatch, judge

#: Four proposals of one row; the window costs a quarter more than a plain step, the drafter a fifth of one.
ROUND = DraftRound(rows=1, tokens=2, drafted=4, accepted=1, plain=0.010, verify=0.0125, draft=0.002)
GOOD = replace(ROUND, tokens=4, accepted=3)
POOR = replace(ROUND, tokens=1, accepted=0)


def told(watch: LosingWatch, rounds: list[DraftRound]) -> list[LosingReport]:
    return [report for each in rounds if (report := watch.observe(each)) is not None]


def test_speed_is_tokens_against_what_plain_decoding_takes_for_them() -> None:
    assert judge([ROUND]).speed == pytest.approx(2 * 0.010 / 0.0145)
    pair = replace(ROUND, rows=2, tokens=5)
    assert judge([pair]).speed == pytest.approx(5 / 2 * 0.010 / 0.0145)
    assert judge([replace(ROUND, seconds=0.029)]).speed == pytest.approx(2 * 0.010 / 0.029)


def test_a_stretch_that_wins_is_no_news() -> None:
    watch = LosingWatch(window=8)
    assert told(watch, [GOOD, POOR] * 40) == []
    assert (watch.losing, watch.reason) == (0, None)


def test_a_losing_stretch_is_told_once_and_counted_on() -> None:
    watch = LosingWatch(window=8, quiet=100)
    reports = told(watch, [POOR] * 80)
    assert len(reports) == 1
    assert reports[0].rounds == 8
    assert (watch.losing, watch.reason) == (10, "acceptance too low")
    assert len(told(watch, [POOR] * 80)) == 1


def test_the_reason_goes_when_speculation_wins_again() -> None:
    watch = LosingWatch(window=8)
    told(watch, [POOR] * 8 + [GOOD] * 8)
    assert (watch.losing, watch.reason) == (1, None)


def test_fewer_rounds_than_a_stretch_say_nothing() -> None:
    watch = LosingWatch(window=8)
    assert told(watch, [POOR] * 7) == []
    assert watch.losing == 0


def test_one_stall_does_not_make_a_loss() -> None:
    stalled = [replace(GOOD, seconds=5.0)] + [replace(GOOD, seconds=0.0145)] * 31
    assert judge(stalled).speed > 1.5
    assert told(LosingWatch(window=32), stalled) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (POOR, "acceptance too low"),
        (replace(POOR, draft=0.045), "draft too dear"),
        (replace(POOR, verify=0.060), "verify too dear"),
        (replace(ROUND, accepted=3, tokens=4, draft=0.030), "draft too dear"),
        (replace(ROUND, accepted=3, tokens=4, verify=0.039), "verify too dear"),
    ],
)
def test_the_reason_is_what_would_have_to_change(found: DraftRound, reason: str) -> None:
    report = judge([found])
    assert report.speed < 1
    assert report.reason == reason
    assert reason in str(report)
    assert f"{report.speed:.2f}x" in str(report)
