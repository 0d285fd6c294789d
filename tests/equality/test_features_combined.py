"""200 random combinations of features: mixed in batches of eight and alone, every drafter, both orders of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.support.features import DRAFTERS, Engines, Request, engines, mixed_batches

import paceline.engine.draws as draws_module
import paceline.engine.round as round_module
from paceline.core.params import SamplingParams
from paceline.engine.grammars import RoundMasks
from paceline.engine.stopping import StopStrings, _Matcher

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def examples(count: int) -> settings:
    """So many examples, the same ones each time."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # shrinking a batch of eight requests takes longer than reading it
        suppress_health_check=_CHECKS,
    )


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


@examples(25)
@given(requests=mixed_batches())
def test_mixed_batches_of_eight(served: Engines, requests: list[Request]) -> None:
    for drafter, device_round in product(DRAFTERS, (False, True)):
        assert served.check(requests, drafter, device_round) == []


@examples(25)
@given(requests=mixed_batches())
def test_the_same_requests_one_at_a_time(served: Engines, requests: list[Request]) -> None:
    for place, request in enumerate(requests):
        for number, drafter in enumerate(DRAFTERS):
            assert served.check([request], drafter, bool((place + number) % 2)) == []


@pytest.mark.grid
@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_many_combinations_in_every_way(coupling: str) -> None:
    with engines(coupling) as opened:

        @examples(150)
        @given(requests=mixed_batches())
        def check(requests: list[Request]) -> None:
            for drafter, device_round in product(DRAFTERS, (False, True)):
                assert opened.check(requests, drafter, device_round) == []
                assert [line for r in requests for line in opened.check([r], drafter, device_round)] == []

        check()


def _other_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = draws_module.apply_processors
    monkeypatch.setattr(draws_module, "apply_processors", lambda x, p, w: right(x, p, [list(v)[::-1] for v in w]))


def _used_draws_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    right = draws_module.RowSampler.observe
    monkeypatch.setattr(draws_module.RowSampler, "observe", lambda self, row, draws: right(self, row, draws[:-1]))


def _filters_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_module, "chains_of", lambda chains: None)


def _one_mask_per_window(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RoundMasks.apply

    def apply(self: RoundMasks, logits: Any) -> None:
        if self.masks is not None:
            right(replace(self, places=self.places[:1], masks=self.masks[:1]), logits)

    monkeypatch.setattr(RoundMasks, "apply", apply)


def _shifted_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = round_module.add_logprobs

    def add(rows: Any, results: Any, *more: Any) -> Any:
        found = right(rows, results, *more)
        return [replace(r, metadata=r.metadata and r.metadata[::-1]) for r in found]

    monkeypatch.setattr(round_module, "add_logprobs", add)


def _stops_within_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StopStrings.feed

    def feed(self: StopStrings, text: str) -> str:
        self._matchers = [_Matcher(m.pattern) for m in self._matchers]
        return right(self, text)

    monkeypatch.setattr(StopStrings, "feed", feed)


@pytest.mark.parametrize(
    "broken",
    [
        _other_drafts,
        _used_draws_lost,
        _filters_forgotten,
        _one_mask_per_window,
        _shifted_logprobs,
        _stops_within_tokens,
    ],
)
def test_the_batches_catch_broken_engines(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    broken(monkeypatch)
    with engines() as opened:

        @examples(25)
        @given(requests=mixed_batches())
        def check(requests: list[Request]) -> None:
            if not found:
                found.extend(opened.check(requests, "oracle", False))

        check()
    assert found


def test_the_combinations_hold_every_feature_and_every_end(served: Engines) -> None:
    seen: set[str] = set()

    @examples(25)
    @given(requests=mixed_batches())
    def look(requests: list[Request]) -> None:
        for prompt, params in requests:
            names = params.__dataclass_fields__
            seen.update(name for name in names if getattr(params, name) != names[name].default)
            answer = served.decoder.run(prompt, params)
            seen.add(f"ends by {answer.finish_reason} {type(answer.stop_reason).__name__}")

    look()
    assert {name for name in SamplingParams.__dataclass_fields__ if name not in seen} == {"n", "best_of"}
    assert {"ends by length NoneType", "ends by stop str", "ends by stop int", "ends by stop NoneType"} <= seen
