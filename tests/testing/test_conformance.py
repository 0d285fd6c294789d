"""``check_provider`` passes sound drafters and says what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.draft.base import TokenDrafter
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.testing.conformance import Coverage, check_provider
from paceline.testing.drafters import EmptyDrafter, RandomDrafter
from paceline.testing.faulty import Breach, FailingDrafter, OutOfContractDrafter

QUICK = Coverage(families=("toy",), depths=(1, 4), chunks=(7, 512), batches=(1, 3))


class LastTokens(TokenDrafter):
    """A drafter as its author would write it: repeats the newest tokens."""

    id = "last-tokens"

    def propose(self, state: Any, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return tokens[-max_tokens:]


@pytest.mark.parametrize("provider", [LastTokens(), EmptyDrafter(), NgramDrafter(), RandomDrafter])
def test_sound_drafters_pass(provider: Any) -> None:
    report = check_provider(provider, QUICK)
    assert report.ok, report
    assert "all streams equal plain decoding" in str(report)


def test_a_drafter_passes_on_a_real_tiny_model() -> None:
    report = check_provider(LastTokens(), Coverage(families=("qwen3",), depths=(3,), chunks=(64,), batches=(3,)))
    assert report.ok, report
    assert report.drafted > 0


@pytest.mark.parametrize("breach", ["too_long", "outside_vocabulary", "negative"])
def test_a_drafter_out_of_contract_is_told_what_it_did(breach: Breach) -> None:
    report = check_provider(OutOfContractDrafter(breach), QUICK)
    assert not report.ok
    assert ("at depth" if breach == "too_long" else "outside the vocabulary") in str(report)
    assert not any("tokens differ" in problem for problem in report.problems), "the engine contained it"


def test_a_raising_drafter_fails_with_the_failure_counted() -> None:
    report = check_provider(lambda: FailingDrafter(LastTokens(), "draft", 2), QUICK, stop_at_first=True)
    assert not report.ok and len(report.results) == 1
    assert "1 drafter failures" in str(report) and "DrafterBroke: draft, call 2" in str(report)


def test_the_full_coverage_has_every_combination() -> None:
    coverage = Coverage(families=("toy",), samplings=("greedy",), depths=(1, 2), chunks=(7,), batches=(1,), full=True)
    assert len(coverage.cells("x")) == 6, "two depths in three orders of rounds"


def test_a_report_without_results_is_not_ok() -> None:
    assert not check_provider(EmptyDrafter(), Coverage(families=(), full=True)).ok
