"""S20: prompts without a token are refused, prompts of one token answered, and the engine lives on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.tiny import FAMILY, decoder, drafter, engine_over, greedy, jobs_of

from paceline import LLM, RequestError
from paceline.testing.harness import Setup, compare, run_jobs
from paceline.testing.models import tiny_model


@pytest.fixture(scope="module", params=["none", "ngram"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(str(tiny_model(FAMILY)), dtype="float64", device="cpu", spec_method=request.param) as opened:
        yield opened


@pytest.mark.parametrize("prompts", ["", [], [""], [[]], [[5], []], ["a", ""]])
def test_s20_a_prompt_without_tokens_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(prompts, greedy(8))
    answer = llm.generate([[5, 6, 7]], greedy(8))[0]
    assert answer.token_ids == decoder().run((5, 6, 7), greedy(8)).tokens, "alive"


@pytest.mark.parametrize("token", [0, 1, 77, 319])
def test_s20_a_prompt_of_one_token_is_answered(llm: LLM, token: int) -> None:
    answer = llm.generate([[token]], greedy(8))[0]
    run = decoder().run((token,), greedy(8))
    assert (answer.token_ids, answer.finish_reason) == (run.tokens, run.finish_reason)
    assert answer.metrics.completion_tokens == run.generated


def test_s20_messages_with_empty_content_are_answered(llm: LLM) -> None:
    messages = [{"role": "user", "content": ""}]
    prompt = llm.encode_chat(messages).ids
    assert llm.chat(messages, greedy(8))[0].token_ids == decoder().run(prompt, greedy(8)).tokens
    for nothing in ([], [[]]):
        with pytest.raises(RequestError, match="messages"):
            llm.chat(nothing, greedy(8))


@pytest.mark.parametrize("name", ["none", "D-self", "D-bad", "D-lookup", "D-empty"])
def test_s20_one_token_prompts_under_every_drafter(name: str) -> None:
    jobs = jobs_of([(token,) for token in (0, 1, 50, 319)], greedy(8))
    with engine_over(Setup(rows=4), drafter(name)) as engine:
        assert compare(jobs, decoder(), run_jobs(engine, jobs)) == []
