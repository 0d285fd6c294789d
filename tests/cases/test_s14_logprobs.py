"""S14: every returned id has its log-probability and the likeliest others, the same with any drafter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.equality.test_features_llama import PROMPTS, SINGLE, llama, target
from tests.support.features import DRAFTERS, Engines, engines

from paceline.core.params import SamplingParams


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines(plain=llama(), make_target=target, tolerance=SINGLE) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_s14_chosen_and_top_five(drafter: str, temperature: float, mode: str, served: Engines) -> None:
    params = SamplingParams(
        max_tokens=20, temperature=temperature, seed=4, logprobs=5, logprobs_mode=mode, frequency_penalty=0.3
    )
    requests = [(prompt, params) for prompt in PROMPTS]
    assert served.check(requests, drafter, True) == []
    plain = [served.serve([request], "none", False)[0] for request in requests]
    for without, output in zip(plain, served.serve(requests, drafter, True), strict=True):
        assert output.logprobs is not None and without.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        for token, entry, other in zip(output.token_ids, output.logprobs, without.logprobs, strict=True):
            assert list(entry) == list(other) and token in entry
            assert all(abs(entry[i].logprob - other[i].logprob) < 1e-10 for i in entry)
            best = next(iter(entry.values()))
            assert best.rank == 1 and best.logprob == max(value.logprob for value in entry.values())
            assert entry[token].logprob < 0.0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_s14_asking_changes_no_token(drafter: str, served: Engines) -> None:
    answers = [
        served.serve([(PROMPTS[0], SamplingParams(max_tokens=20, seed=4, logprobs=top))], drafter, False)[0].token_ids
        for top in (None, 0, 1, 5, -1)
    ]
    assert len(set(answers)) == 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_s14_a_stream_brings_them_with_their_ids(drafter: str, served: Engines) -> None:
    params = SamplingParams(max_tokens=20, seed=4, logprobs=3)
    deltas = list(served.llm(drafter, True).stream(list(PROMPTS[0]), params))
    whole = deltas[-1].output
    assert whole is not None
    assert all(len(delta.logprobs or ()) == len(delta.token_ids) for delta in deltas)
    assert tuple(entry for delta in deltas for entry in delta.logprobs or ()) == whole.logprobs
