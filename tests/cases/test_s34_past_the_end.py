"""S34: near the end of the context nothing is drafted, written or drawn past it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.support.tiny import greedy

from paceline.core.errors import RequestError
from paceline.models.artifact import open_artifact
from paceline.models.binding import load_target
from paceline.testing.collect import Collector
from paceline.testing.drafters import OracleDrafter, RandomDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.models import TinyModel, tiny_model
from paceline.testing.reference import PlainDecoder, reference
from paceline.testing.watch import WatchedDrafter

LENGTH, DEPTH = 64, 4
ROOMS = range(1, DEPTH + 3)


@functools.cache
def model(context: int) -> tuple[Any, PlainDecoder]:
    """The target cut to 64 positions: by its own config, or by ``max_model_len``."""
    path = tiny_model(TinyModel(context=context))
    target = load_target(open_artifact(str(path)), "float64", "cpu", LENGTH)
    return target, reference(path, LENGTH)


def prompt_leaving(room: int) -> tuple[int, ...]:
    return tuple((11 * place + room) % 300 + 4 for place in range(LENGTH - room))


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("context", [LENGTH, 256])
@pytest.mark.parametrize("drafter", ["D-self", "D-bad"])
def test_s34_the_answer_fills_the_context_exactly(drafter: str, context: int, device_round: bool) -> None:
    target, decoder = model(context)
    inner = OracleDrafter(decoder.recorded) if drafter == "D-self" else RandomDrafter()
    watched = WatchedDrafter(inner)
    setup = Setup(rows=3, chunk=16, depth=DEPTH, device_round=device_round)
    jobs = [Job(f"room-{n}", prompt_leaving(n), greedy(None, ignore_eos=True)) for n in ROOMS]
    with open_engine(target, decoder.eos_ids, setup, watched) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) == []
        assert leftovers(engine) == []
        fresh = [Job("fresh", (9, 8, 7), greedy(12))]
        assert compare(fresh, decoder, run_jobs(engine, fresh)) == []
    for n in ROOMS:
        got = served[f"room-{n}"]
        assert (got.generated, got.reason) == (n, "length")
    places = [place for row in watched.rows.values() for place in row.positions]
    assert max(places) < LENGTH and len(places) > len(ROOMS)
    assert watched.problems == []


@pytest.mark.parametrize("room", ROOMS)
def test_s34_a_budget_that_cannot_fit_is_refused_by_name(room: int) -> None:
    target, decoder = model(LENGTH)
    with (
        open_engine(target, decoder.eos_ids, Setup(depth=DEPTH)) as engine,
        pytest.raises(RequestError, match=r"max_tokens.*max_model_len"),
    ):
        engine.add_request(prompt_leaving(room), greedy(100), Collector())


def test_s34_a_prompt_that_leaves_no_room_is_refused() -> None:
    target, decoder = model(LENGTH)
    for length in (LENGTH, LENGTH + 1, 10 * LENGTH):
        with open_engine(target, decoder.eos_ids, Setup()) as engine, pytest.raises(RequestError, match="prompt"):
            engine.add_request((5,) * length, greedy(None), Collector())
