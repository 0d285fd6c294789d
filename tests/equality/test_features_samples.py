"""n > 1: each sample is the request alone with seed + j, the prompt is computed once, pressure loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.equality.test_features_combined import examples
from tests.support.features import (
    DRAFTERS,
    EOS,
    LOOPING,
    SPEC,
    combinations,
    decoder,
    make_drafter,
    tokenizer,
)
from tests.support.grammars import GRAMMARS

from paceline import LLM
from paceline.core.params import SamplingParams
from paceline.engine.outputs import RequestOutput
from paceline.testing.collect import Behaviour, Collector
from paceline.testing.features import departures, open_llm
from paceline.testing.harness import Setup, leftovers
from paceline.testing.toy import ToyTarget

#: Four blocks of sixteen and a bit.
PROMPT = tuple(40 + (place * place) % 23 for place in range(70))
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 12},
    "penalties": {**LOOPING, "frequency_penalty": 0.7, "dry_multiplier": 0.8},
    "logprobs": {"max_tokens": 12, "logprobs": 2, "prompt_logprobs": 1},
    "stops": {"max_tokens": 20, "stop": list("aeiost"), "min_tokens": 2},
    "grammar": {"max_tokens": 20, "structured_outputs": {"regex": GRAMMARS["regex"]}},
    "xtc": {"max_tokens": 12, "xtc_probability": 0.5, "xtc_threshold": 0.02},
    "greedy": {"max_tokens": 12, "temperature": 0.0},
}


def sample_problems(prompt: tuple[int, ...], params: SamplingParams, output: RequestOutput) -> list[str]:
    """Where samples differ from the same request alone with seed + j."""
    assert params.seed is not None and len(output.outputs) == params.n
    found: list[str] = []
    generated = 0
    for place, choice in enumerate(output.outputs):
        alone = replace(params, n=1, seed=(params.seed + place) % 2**64)
        answer = decoder().run(prompt, alone)
        generated += answer.generated
        metrics = replace(output.metrics, completion_tokens=answer.generated)
        found += departures(answer, replace(output, outputs=(choice,), metrics=metrics))
        if choice.index != place:
            found.append(f"sample {place} has index {choice.index}")
    errors = any(choice.finish_reason == "error" for choice in output.outputs)
    if output.metrics.completion_tokens != generated and not errors:
        found.append(f"{output.metrics.completion_tokens} completion tokens instead of {generated}")
    return found


def all_problems(params: Sequence[SamplingParams], outputs: Sequence[RequestOutput]) -> list[str]:
    return [line for each, out in zip(params, outputs, strict=True) for line in sample_problems(PROMPT, each, out)]


def open_toy(drafter: str, setup: Setup, target: ToyTarget | None = None) -> Any:
    return open_llm(target or ToyTarget(SPEC), EOS, setup, make_drafter(drafter, decoder()), tokenizer())


def held(llm: LLM) -> list[str]:
    return leftovers(llm.engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_samples_are_the_request_alone_with_the_next_seeds(drafter: str, device_round: bool) -> None:
    with open_toy(drafter, Setup(rows=8, chunk=16, device_round=device_round)) as llm:
        params = [SamplingParams(n=2 + n % 3, **{"seed": 2**64 - 2, **kind}) for n, kind in enumerate(KINDS.values())]
        outputs = llm.generate([list(PROMPT)] * len(params), params)
        assert [
            line for each, out in zip(params, outputs, strict=True) for line in sample_problems(PROMPT, each, out)
        ] == []
        assert held(llm) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_prompt_is_computed_once(kind: str) -> None:
    options = {**KINDS[kind], "max_tokens": 1, "min_tokens": 0, "seed": 5}
    forwards = {}
    for n in (1, 5):
        target = ToyTarget(SPEC)
        with open_toy("none", Setup(rows=8, chunk=16), target) as llm:
            llm.generate([list(PROMPT)], SamplingParams(n=n, **options))
            forwards[n] = target.forwards
    assert forwards[1] == 5
    assert forwards[5] <= forwards[1] + 2


@pytest.mark.parametrize("gone", [(0,), (1, 3), (0, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "oracle", "adversarial"])
def test_aborted_samples_leave_the_others_alone(drafter: str, after: int, gone: tuple[int, ...]) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=9, n=4, frequency_penalty=0.5)
    with open_toy(drafter, Setup(rows=4, chunk=16)) as llm:
        samples = [Collector(Behaviour(abort_after=after if place in gone else None)) for place in range(4)]
        llm.engine.add_samples(PROMPT, params, samples)
        for place, sample in enumerate(samples):
            sample.wait()
            expected = decoder().run(PROMPT, replace(params, n=1, seed=9 + place))
            if place not in gone:
                assert tuple(sample.tokens) == expected.tokens and sample.reason == expected.finish_reason
            elif sample.reason == "abort":
                assert tuple(sample.tokens) == expected.tokens[: len(sample.tokens)]
            assert sample.problems == []
        assert held(llm) == []


@pytest.mark.parametrize("place", range(4))
def test_a_sample_aborted_before_its_first_token(place: int) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=9, n=4, prompt_logprobs=1)
    with open_toy("oracle", Setup(rows=2, chunk=16)) as llm:
        samples = [Collector() for _ in range(4)]
        names = llm.engine.add_samples(PROMPT, params, samples)
        llm.engine.abort(names[place])
        for number, sample in enumerate(samples):
            sample.wait()
            expected = decoder().run(PROMPT, replace(params, n=1, seed=9 + number))
            assert number == place or tuple(sample.tokens) == expected.tokens
        assert held(llm) == []


@pytest.mark.parametrize("ram", [0, None])
@pytest.mark.parametrize("blocks", [10, 12, 14, 18])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_preempted_samples_go_on_as_if_nothing_had_been(drafter: str, blocks: int, ram: int | None) -> None:
    setup = Setup(rows=8, chunk=16, kv_cache_tokens=16 * blocks, preempt_ram_bytes=ram)
    with open_toy(drafter, setup) as llm:
        params = [
            SamplingParams(n=5, **{**LOOPING, "max_tokens": 40}, logprobs=1, prompt_logprobs=1),
            SamplingParams(n=3, seed=4, max_tokens=50, temperature=1.0, structured_outputs={"json": GRAMMARS["json"]}),
        ]
        outputs = llm.generate([list(PROMPT)] * 2, params)
        assert [
            line for each, out in zip(params, outputs, strict=True) for line in sample_problems(PROMPT, each, out)
        ] == []
        assert llm.stats().preemptions > 0 or blocks > 14
        assert held(llm) == []


@examples(25)
@given(
    requests=st.lists(st.tuples(st.integers(1, 60), combinations(), st.integers(1, 4)), min_size=1, max_size=4),
    blocks=st.sampled_from([8, 12, 64]),
    drafter=st.sampled_from(DRAFTERS),
    chunk=st.sampled_from([5, 16, 64]),
)
def test_random_families_in_little_memory(
    requests: list[tuple[int, SamplingParams, int]], blocks: int, drafter: str, chunk: int
) -> None:
    prompts = [PROMPT[:length] for length, _, _ in requests]
    params = [replace(each, n=n) for _, each, n in requests]
    with open_toy(drafter, Setup(rows=4, chunk=chunk, kv_cache_tokens=16 * blocks)) as llm:
        outputs = llm.generate([list(prompt) for prompt in prompts], params)
        triples = zip(prompts, params, outputs, strict=True)
        assert [line for triple in triples for line in sample_problems(*triple)] == []
        assert held(llm) == []
