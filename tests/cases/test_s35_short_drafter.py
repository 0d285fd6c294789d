"""S35: a drafter that knows fewer positions than the target stops drafting there, for its row alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.tiny import decoder, engine_over, greedy

from paceline.core.row import Row
from paceline.testing.drafters import OracleDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs
from paceline.testing.watch import WatchedDrafter

TARGET, DRAFT = 256, 128
LENGTHS = (100, 127, 128, 129, 200)


class ShortDrafter(OracleDrafter):
    """Right up to position 127; beyond it proposes nothing, or with ``crashes`` raises as a table read past its end."""

    def __init__(self, crashes: bool) -> None:
        super().__init__(decoder().recorded)
        self._crashes = crashes

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        room = DRAFT - 1 - row.length
        if room < 1:
            if self._crashes:
                error = IndexError(f"position {row.length} of a table of {DRAFT}")
                error.row = row  # type: ignore[attr-defined]
                raise error
            return []
        return super().propose_for(row, min(depth, room))


def jobs_of(lengths: Sequence[int]) -> list[Job]:
    return [
        Job(f"long-{n}", tuple((3 * p + n) % 300 + 4 for p in range(n)), greedy(250 - n, ignore_eos=True))
        for n in lengths
    ]


@pytest.mark.parametrize("crashes", [False, True])
def test_s35_beyond_the_drafters_positions_the_target_goes_on_alone(crashes: bool) -> None:
    jobs = jobs_of(LENGTHS)
    watched = WatchedDrafter(ShortDrafter(crashes))
    with engine_over(Setup(rows=len(jobs)), watched) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) == []
        assert leftovers(engine) == []
        assert bool(engine.stats().drafter_failures) == crashes
    for job in jobs:
        drafted = served[job.name].spec.drafted
        assert (drafted > 0) == (len(job.prompt) < DRAFT - 1), f"{job.name} drafted {drafted}"
    assert all(place < DRAFT for row in watched.rows.values() for place in row.positions)


def test_s35_a_short_row_beside_a_long_one_is_still_drafted() -> None:
    jobs = [*jobs_of([200]), Job("short", (5, 6, 7), greedy(40, ignore_eos=True))]
    with engine_over(Setup(rows=2), ShortDrafter(crashes=True)) as engine:
        served = run_jobs(engine, jobs)
    assert compare(jobs, decoder(), served) == []
    short = served["short"].spec
    assert short.accepted == short.drafted > 20
