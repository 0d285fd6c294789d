"""S13: no end before ``min_tokens``, at no position of a window; the end is free right after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.features import EOS, PROMPTS, SPEC, Engines, decoder, engines, tokenizer

from paceline.core.params import SamplingParams
from paceline.testing.drafters import ScriptedDrafter
from paceline.testing.features import departures, open_llm
from paceline.testing.harness import Setup
from paceline.testing.tokenizer import IM_END
from paceline.testing.toy import ToyTarget

PROMPT = PROMPTS[2]


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


def ending_at(place: int, min_tokens: int) -> SamplingParams:
    """Greedy, with the token that plain decoding draws at output place ``place`` (from 1) as an end."""
    tokens = decoder().run(PROMPT, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)).tokens
    return SamplingParams(
        max_tokens=20, temperature=0.0, min_tokens=min_tokens, stop_token_ids=[tokens[place - 1]], ignore_eos=True
    )


@pytest.mark.parametrize("min_tokens", range(9))
@pytest.mark.parametrize("place", range(1, 7))
def test_s13_an_end_that_comes_too_early_is_not_drawn(place: int, min_tokens: int, served: Engines) -> None:
    params = ending_at(place, min_tokens)
    for number, drafter in enumerate(("none", "oracle", "adversarial")):
        assert served.check([(PROMPT, params)], drafter, bool((place + number) % 2)) == []
    (output,) = served.serve([(PROMPT, params)], "oracle", True)
    assert output.metrics.completion_tokens >= min_tokens
    if min_tokens < place:
        assert output.finish_reason == "stop" and output.metrics.completion_tokens == place


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("min_tokens", range(9))
def test_s13_a_target_that_wants_to_end_does_so_right_after(min_tokens: int, device_round: bool) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.0, min_tokens=min_tokens, logit_bias={IM_END: 100.0})
    script = ScriptedDrafter([[IM_END] * 4] * 20)
    setup = Setup(rows=1, depth=4, device_round=device_round)
    with open_llm(ToyTarget(SPEC), EOS, setup, script, tokenizer()) as llm:
        (output,) = llm.generate([list(PROMPT)], params)
    assert departures(decoder().run(PROMPT, params), output) == []
    assert len(output.token_ids) == min_tokens and output.metrics.completion_tokens == min_tokens + 1


@pytest.mark.parametrize("drafter", ["none", "oracle", "adversarial", "ngram"])
@pytest.mark.parametrize("min_tokens", range(0, 9, 2))
def test_s13_no_stop_string_before_it_either(min_tokens: int, drafter: str, served: Engines) -> None:
    stops = [*"etaoinshrdlu .,", "\ufffd"]
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=5, min_tokens=min_tokens, stop=stops)
    requests = [(prompt, params) for prompt in PROMPTS]
    assert served.check(requests, drafter, True) == []
    assert all(len(output.token_ids) >= min_tokens for output in served.serve(requests, drafter, False))
