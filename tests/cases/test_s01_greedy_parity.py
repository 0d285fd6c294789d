"""S01: at temperature 0 no drafter, however much it is engaged, changes an answer."""

from __future__ import annotations

import pytest
from tests.support.tiny import decoder, drafter, greedy, jobs_of, prompts, serve

from paceline.testing.harness import Setup, compare

DRAFTERS = ["D-self", "D-bad", *(f"D-err@{place}" for place in range(4)), "D-lookup"]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_s01_answers_are_those_of_plain_decoding(name: str, depth: int) -> None:
    wrong_at = int(name[-1]) if "err" in name else None
    jobs = jobs_of(prompts(50), greedy(64, ignore_eos=True))
    served = serve(Setup(rows=50, depth=depth), jobs, drafter(name, wrong_at))
    assert compare(jobs, decoder(), served) == []
    drafted = sum(got.spec.drafted for got in served.values())
    accepted = sum(got.spec.accepted for got in served.values())
    assert drafted > 0, "the drafter really ran"
    if name == "D-self":
        assert accepted / drafted > 0.95
    if name == "D-bad":
        assert accepted / drafted < 0.1
    if wrong_at is not None:
        longest = max(max(got.spec.acceptance_lengths, default=0) for got in served.values())
        assert longest == min(wrong_at, depth)
