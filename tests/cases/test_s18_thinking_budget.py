"""S18: a thinking block closes at the same place whatever the windows were, once, and the answer goes on as plain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.features import DRAFTERS, END_THINK, SPEC, THINK, Engines, decoder, engines, tokenizer

from paceline.core.errors import RequestError
from paceline.core.params import SamplingParams
from paceline.testing.features import open_llm
from paceline.testing.harness import Setup
from paceline.testing.tokenizer import build_tokenizer
from paceline.testing.toy import ToyTarget

#: The target never closes a block by itself and opens no other.
NEVER = {END_THINK: -100.0, THINK: -100.0}


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [0, 1, 7, 8, 9, 10, 11])
def test_s18_the_block_closes_at_its_budget(budget: int, temperature: float, served: Engines) -> None:
    prompt = (50, 60, 70, THINK)
    params = SamplingParams(
        max_tokens=24, temperature=temperature, seed=2, thinking_budget=budget, logit_bias=NEVER, logprobs=1
    )
    for place, drafter in enumerate(DRAFTERS):
        assert served.check([(prompt, params)], drafter, bool(place % 2)) == []
        (output,) = served.serve([(prompt, params)], drafter, bool(place % 2))
        assert [p for p, token in enumerate(output.token_ids) if token == END_THINK] == [budget]
        assert output.text.count("</think>") == 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_s18_tokens_of_the_prompt_count_and_blocks_may_follow_each_other(drafter: str, served: Engines) -> None:
    begun = (50, THINK, 60, 61, 62)
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=3, thinking_budget=4, logit_bias={THINK: 11.0})
    assert served.check([(begun, params), ((50,), params)], drafter, True) == []
    tokens = decoder().run(begun, params).tokens
    assert tokens.count(END_THINK) >= 2 and END_THINK in tokens[:2]


def test_s18_a_model_without_markers_refuses_by_name() -> None:
    assert len(build_tokenizer()) < len(tokenizer())
    opened = open_llm(ToyTarget(SPEC), (), Setup(rows=1), None, build_tokenizer())
    with opened as llm, pytest.raises(RequestError, match="thinking_budget"):
        llm.generate([[5, 6]], SamplingParams(max_tokens=3, thinking_budget=5))
