"""S35 with a real drafter: a model of fewer positions stops drafting at its end, row by row, and no stream changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.draft.model_kit import TARGET, greedy, load, target

from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.models import tiny_model
from paceline.testing.watch import WatchedDrafter

LONG, SHORT = 256, 128
LENGTHS = (100, 127, 128, 129, 200)


def short_drafter() -> ModelDrafter:
    return ModelDrafter(load(tiny_model(TARGET), SHORT))


def prompt(length: int) -> tuple[int, ...]:
    return tuple((3 * place + length) % 300 + 4 for place in range(length))


@pytest.mark.parametrize("chunk", [16, 512])
def test_s35_beyond_its_positions_the_target_goes_on_alone(chunk: int) -> None:
    model, decoder = target(replace(TARGET, context=LONG))
    jobs = [Job(f"long-{length}", prompt(length), greedy(150 if length == 100 else 12)) for length in LENGTHS]
    jobs.append(Job("short", prompt(9), greedy(60)))
    watched = WatchedDrafter(short_drafter())
    with open_engine(model, decoder.eos_ids, Setup(rows=len(jobs), chunk=chunk), watched) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + leftovers(engine) + watched.problems == []
        assert engine.stats().drafter_failures == 0
    for job in jobs:
        assert (served[job.name].spec.drafted > 0) == (len(job.prompt) < SHORT - 1), job.name
    for name, row in watched.rows.items():
        assert all(place < SHORT for place in row.positions), f"{name} was drafted for past the drafter's positions"
    assert watched.rows["long-100"].proposed.count(0) > 50, "it was asked, and declined"
    assert served["short"].spec.accepted >= 40
    assert served["long-100"].spec.accepted >= SHORT - 100 - 10


def test_s35_every_proposal_before_the_limit_is_right() -> None:
    """The last positions are drafted for as well as the first: none is read past the table's end."""
    model, decoder = target(replace(TARGET, context=LONG))
    jobs = [Job("job", prompt(100), greedy(100))]
    with open_engine(model, decoder.eos_ids, Setup(rows=1, depth=5), short_drafter()) as engine:
        served = run_jobs(engine, jobs)
    spec = served["job"].spec
    assert compare(jobs, decoder, served) == []
    assert spec.rejected == 0
    assert 100 + spec.accepted + spec.rounds in range(SHORT - 2, SHORT + 1)
