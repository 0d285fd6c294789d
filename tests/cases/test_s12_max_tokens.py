"""S12: bursts never overshoot the token budget, streamed or not."""

from __future__ import annotations

import pytest
from tests.support.tiny import FAMILY, decoder, drafter, greedy, serve

from paceline import LLM
from paceline.testing.harness import Job, Setup, compare
from paceline.testing.models import tiny_model

DEPTH = 4
TEXT = "a b c a b c a b"


@pytest.fixture(scope="module")
def llm():  # type: ignore[no-untyped-def]
    with LLM(str(tiny_model(FAMILY)), dtype="float64", device="cpu", spec_method="ngram", spec_tokens=DEPTH) as opened:
        yield opened


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("name", ["D-self", "D-lookup"])
@pytest.mark.parametrize("max_tokens", range(1, 2 * DEPTH + 3))
def test_s12_exactly_the_budget(max_tokens: int, name: str, device_round: bool, llm: LLM) -> None:
    prompt = llm.encode(TEXT).ids
    jobs = [Job("job", prompt, greedy(max_tokens, ignore_eos=True))]
    got = serve(Setup(rows=1, depth=DEPTH, device_round=device_round), jobs, drafter(name))["job"]
    assert compare(jobs, decoder(), {"job": got}) == []
    assert len(got.tokens) == got.generated == max_tokens and got.reason == "length"


@pytest.mark.parametrize("max_tokens", range(1, 2 * DEPTH + 3))
def test_s12_the_facade_returns_and_streams_exactly_the_budget(max_tokens: int, llm: LLM) -> None:
    params = greedy(max_tokens, ignore_eos=True)
    expected = decoder().run(llm.encode(TEXT).ids, params).tokens
    whole = llm.generate(TEXT, params)[0]
    deltas = list(llm.stream(TEXT, params))
    last = deltas[-1].output
    assert last is not None
    assert whole.token_ids == last.token_ids == expected
    assert tuple(token for delta in deltas for token in delta.token_ids) == expected
    assert "".join(delta.text for delta in deltas) == whole.text == last.text
    assert whole.metrics.completion_tokens == last.metrics.completion_tokens == max_tokens
    assert whole.finish_reason == last.finish_reason == "length"
