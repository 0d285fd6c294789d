"""S17: every option acts with a drafter as without one; what does not exist is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.features import LOOPING, PROMPTS, SAMPLED, Engines, engines

from paceline.core.errors import RequestError
from paceline.core.params import SamplingParams

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "min_p": (dict(SAMPLED), {"min_p": 0.3}),
    "xtc": (dict(SAMPLED), {"xtc_threshold": 0.1, "xtc_probability": 1.0}),
    "bias_up": (dict(SAMPLED), {"logit_bias": {70: 100.0}}),
    "bias_down": (dict(LOOPING), {"bad_words": [(40,)], "logit_bias": {**LOOPING["logit_bias"], 77: -100.0}}),
    "typical_p": (dict(SAMPLED), {"typical_p": 0.5}),
    "bad_words": (dict(LOOPING), {"bad_words": [(77,), (40, 115)]}),
    "dry": (dict(LOOPING), {"dry_multiplier": 0.8}),
    "repetition_penalty": (dict(LOOPING), {"repetition_penalty": 1.3}),
    "frequency_penalty": (dict(LOOPING), {"frequency_penalty": 0.8}),
    "presence_penalty": (dict(LOOPING), {"presence_penalty": 0.8}),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


@pytest.mark.parametrize("drafter", ["oracle", "adversarial", "ngram"])
@pytest.mark.parametrize("name", OPTIONS)
def test_s17_the_option_acts(name: str, drafter: str, served: Engines) -> None:
    base, options = OPTIONS[name]
    params = SamplingParams(**{**base, **options})
    requests = [(prompt, params) for prompt in PROMPTS]
    assert served.check(requests, drafter, True) == []
    got = [output.token_ids for output in served.serve(requests, drafter, True)]
    without = [served.decoder.run(prompt, SamplingParams(**base)).tokens for prompt in PROMPTS]
    assert got != without
    if name == "bias_up":
        assert {token for tokens in got for token in tokens} == {70}
    if name == "bias_down":
        assert not {token for tokens in got for token in tokens} & {40, 77}


@pytest.mark.parametrize("name", ["mirostat", "top_a", "tfs_z", "use_beam_search"])
def test_s17_what_does_not_exist_is_refused_by_name(name: str) -> None:
    with pytest.raises((TypeError, RequestError), match=name):
        SamplingParams(**{name: 1})


def test_s17_what_cannot_be_combined_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="typical_p"):
        SamplingParams(typical_p=0.5, filter_order="temperature_last")
