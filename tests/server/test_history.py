"""The last minutes: changes between two moments by hand, a bounded ring, and no figure where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.watched import ShownEngine, full_stats

from paceline.core.stats import EngineStats
from paceline.engine.async_llm import AsyncLLM
from paceline.server.history import Change, History, Sample
from paceline.server.settings import ServerSettings
from paceline.server.state import ServerState


def _sample(at: float, stats: EngineStats, **origins: int) -> Sample:
    return Sample(at, 1, 0, 0.5, stats, origins)


def test_a_change_is_the_difference_of_two_moments() -> None:
    old, new = full_stats(), full_stats()
    new.num_drafts, new.num_draft_tokens, new.num_accepted_tokens = 14, 60, 31
    new.draft_tokens_by_pos, new.accepted_tokens_by_pos = [14, 14, 14, 14, 4], [12, 8, 6, 4, 1]
    new.depth_histogram = {0: 8, 4: 10, 5: 4}
    new.plain_rounds, new.span_rounds = 6, 2
    new.generation_tokens, new.prompt_tokens = 242, 111
    change = Change.between(_sample(10.0, old, drafted=25), _sample(14.0, new, drafted=31, plain=3))
    assert (change.seconds, change.tokens_per_second, change.prompt_tokens_per_second) == (4.0, 5.0, 0.0)
    assert (change.drafted, change.accepted, change.acceptance_rate) == (20, 6, 0.3)
    assert (change.accept_length, change.depth) == (2.5, pytest.approx(20 / 6))
    assert change.rounds == {"drafter": 4, "span": 1, "plain": 1}
    assert change.origins == {"drafted": 6, "copied": 0, "corrected": 0, "bonus": 0, "plain": 3}
    assert change.depths == {0: 2, 5: 4}
    assert change.drafted_by_position == [4, 4, 4, 4, 4]
    assert change.accepted_by_position == [3, 1, 1, 0, 1]


def test_nothing_drafted_has_no_rates() -> None:
    change = Change.between(_sample(1.0, full_stats()), _sample(2.0, full_stats()))
    assert (change.acceptance_rate, change.accept_length, change.depth) == (None, None, None)


def _history(engine: ShownEngine, **how: Any) -> History:
    return History(ServerState(AsyncLLM.from_engine(engine), ServerSettings()), **how)


def test_the_ring_is_bounded_and_changes_reach_as_far_as_it_does() -> None:
    engine = ShownEngine(())
    history = _history(engine, capacity=3)
    assert history.change(60.0) is None
    for tokens in range(5):
        engine.figures = EngineStats(generation_tokens=tokens)
        history.record()
    assert [sample.stats.generation_tokens for sample in history.samples] == [2, 3, 4]
    engine.figures = EngineStats(generation_tokens=12)
    change = history.change(60.0)
    assert change is not None
    assert change.tokens_per_second * change.seconds == pytest.approx(10)
    shortest = history.change(0.0)  # nothing is so young: the youngest sample is taken
    assert shortest is not None
    assert shortest.tokens_per_second * shortest.seconds == pytest.approx(8)


def test_samples_do_not_change_when_the_engine_counts_on() -> None:
    engine = ShownEngine((), figures=full_stats())
    history = _history(engine)
    history.record()
    engine.figures.depth_histogram[0] = 99
    engine.figures.draft_tokens_by_pos[0] = 99
    kept = history.samples[0].stats
    assert (kept.depth_histogram[0], kept.draft_tokens_by_pos[0]) == (6, 10)
