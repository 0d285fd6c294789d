"""S16: penalties count used draws only, however many drafts were accepted or rejected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.features import LOOPING, Engines, engines

from paceline.core.params import SamplingParams

PENALTIES: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.2},
    "all": {"frequency_penalty": 0.7, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    "window": {"frequency_penalty": 0.7, "presence_penalty": 0.5, "repetition_penalty": 1.2, "penalty_window": 16},
}
PROMPT = (40, 77, 40, 77, 115)


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", PENALTIES)
def test_s16_two_hundred_tokens_under_any_drafter(name: str, temperature: float, served: Engines) -> None:
    base = {
        "max_tokens": 200,
        "temperature": temperature,
        "seed": 7,
        "ignore_eos": True,
        "logit_bias": LOOPING["logit_bias"],
    }
    params = SamplingParams(**base, **PENALTIES[name])
    without = served.decoder.run(PROMPT, SamplingParams(**base)).tokens
    assert served.decoder.run(PROMPT, params).tokens != without
    rates = []
    for place, drafter in enumerate(("none", "oracle", "adversarial", "ngram")):
        assert served.check([(PROMPT, params)], drafter, bool(place % 2)) == []
        (output,) = served.serve([(PROMPT, params)], drafter, bool(place % 2))
        rates.append(output.metrics.speculative_decoding.draft_acceptance_rate)
    assert rates[0] == 0 and rates[1] == 1 and 0 < rates[2] < 0.5
