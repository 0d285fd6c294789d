"""Features over a tiny Llama in float64 against ``transformers`` without a cache: fewer of them than over the toy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from tests.equality.test_features_combined import examples
from tests.support.features import DRAFTERS, Engines, Request, engines, features, mixed_batches

from paceline.models.artifact import open_artifact
from paceline.models.binding import load_target
from paceline.testing.features import FeatureDecoder
from paceline.testing.models import tiny_model
from paceline.testing.reference import reference
from paceline.testing.tokenizer import build_tokenizer

#: ``transformers`` normalises in float32 whatever the model's type.
SINGLE = 1e-5
PROMPTS = ((40, 77, 115, 40, 77, 115, 40), (99,), tuple(range(60, 79)))


@functools.cache
def llama() -> FeatureDecoder:
    plain = reference(tiny_model("llama"))
    return FeatureDecoder(
        plain.next_logits,
        build_tokenizer(),
        eos_ids=plain.eos_ids,
        max_model_len=plain.max_model_len,
        vocab_size=plain.vocab_size,
    )


def target() -> Any:
    return load_target(open_artifact(str(tiny_model("llama"))), "float64", "cpu", None)


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines(plain=llama(), make_target=target, tolerance=SINGLE) as opened:
        yield opened


#: This tokenizer has no markers of thinking blocks.
FEATURES = [feature for feature in features() if feature.params.thinking_budget is None]


def batches(step: int) -> list[list[Request]]:
    requests = [(PROMPTS[n % len(PROMPTS)], feature.params) for n, feature in enumerate(FEATURES)][::step]
    return [requests[start : start + 8] for start in range(0, len(requests), 8)]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_features_in_batches_of_eight(drafter: str, served: Engines) -> None:
    for place, requests in enumerate(batches(2)):
        assert served.check(requests, drafter, bool(place % 2)) == []


@pytest.mark.grid
@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_feature_alone_and_together(drafter: str, device_round: bool, served: Engines) -> None:
    for requests in batches(1):
        assert served.check(requests, drafter, device_round) == []
        assert [line for request in requests for line in served.check([request], drafter, device_round)] == []


@pytest.mark.grid
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_random_combinations(drafter: str, served: Engines) -> None:
    @examples(12)
    @given(requests=mixed_batches())
    def check(requests: list[Request]) -> None:
        known = [
            (PROMPTS[place % len(PROMPTS)], params)
            for place, (_, params) in enumerate(requests)
            if params.thinking_budget is None
        ]
        assert served.check(known, drafter, True) == []

    check()
