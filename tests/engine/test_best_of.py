"""best_of: so many samples are drawn, the n likeliest per token are kept; nothing else of the request changes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from paceline import LLM, AsyncLLM, RequestError, SamplingParams
from paceline.testing.models import tiny_model

PROMPT = [5, 6, 7, 8, 5, 6]
PARAMS = SamplingParams(n=2, best_of=5, max_tokens=6, temperature=1.0, seed=11, ignore_eos=True)


def open_llm() -> LLM:
    return LLM(str(tiny_model("llama")), dtype="float64", device="cpu", max_num_seqs=4, kv_cache_tokens=512)


def test_the_likeliest_of_all_samples_are_kept_in_order() -> None:
    with open_llm() as llm:
        (kept,) = llm.generate([PROMPT], PARAMS)
        (whole,) = llm.generate([PROMPT], replace(PARAMS, n=5, best_of=None, logprobs=0))
    ranked = sorted(whole.outputs, key=lambda choice: choice.mean_logprob, reverse=True)
    assert [choice.token_ids for choice in kept.outputs] == [choice.token_ids for choice in ranked[:2]]
    assert [choice.index for choice in kept.outputs] == [0, 1]
    assert len({choice.token_ids for choice in whole.outputs}) > 1
    assert kept.outputs[0].logprobs is None
    assert kept.metrics.completion_tokens == 30


def test_the_mean_is_taken_per_token() -> None:
    with open_llm() as llm:
        (whole,) = llm.generate([PROMPT], replace(PARAMS, n=1, best_of=1, logprobs=0))
    choice = whole.outputs[0]
    assert choice.cumulative_logprob is not None
    assert math.isclose(choice.mean_logprob, choice.cumulative_logprob / 6)


def test_the_asynchronous_facade_keeps_the_same() -> None:
    with open_llm() as llm:
        (expected,) = llm.generate([PROMPT], PARAMS)
        with pytest.raises(RequestError, match="best_of"):
            llm.stream(PROMPT, PARAMS)

    async def run() -> list[tuple[int, ...]]:
        async with AsyncLLM(str(tiny_model("llama")), dtype="float64", max_num_seqs=4, kv_cache_tokens=512) as llm:
            with pytest.raises(RequestError, match="best_of"):
                llm.stream(PROMPT, PARAMS)
            output = await llm.generate(PROMPT, PARAMS)
            return [choice.token_ids for choice in output.outputs]

    assert asyncio.run(run()) == [choice.token_ids for choice in expected.outputs]


def test_fewer_than_n_are_refused() -> None:
    with pytest.raises(RequestError, match="best_of"):
        SamplingParams(n=3, best_of=2)
