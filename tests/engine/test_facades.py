"""Both facades over the real engine and a tiny model: the README's calls, stop strings in bursts, one-token prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import LLM, AsyncLLM, EngineClosed, RequestError, SamplingParams
from paceline.draft.registry import default_registry
from paceline.testing.drafters import OracleDrafter
from paceline.testing.models import TinyModel, tiny_model

_MODEL = TinyModel(seed=3)
_SETTINGS: dict[str, Any] = {
    "dtype": "float64",
    "max_num_seqs": 4,
    "kv_cache_tokens": 2048,
    "num_threads": 1,
    "max_num_batched_tokens": 64,
}
_PROMPTS = ["the other people", "a", "what would they have there? what would they"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model(_MODEL)), spec_tokens=4, **_SETTINGS) as facade:
        yield facade


def _outcome(llm: LLM, prompt: Any, params: SamplingParams) -> tuple[Any, ...]:
    (output,) = llm.generate([prompt], params)
    return (output.text, output.token_ids, output.finish_reason, output.stop_reason, output.metrics.completion_tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_no_output(llm: LLM, temperature: float) -> None:
    on = [SamplingParams(max_tokens=40, temperature=temperature, seed=i) for i in range(3)]
    off = [SamplingParams(max_tokens=40, temperature=temperature, seed=i, speculative=False) for i in range(3)]
    with_it, without = llm.generate(_PROMPTS, on), llm.generate(_PROMPTS, off)
    assert [output.outputs for output in with_it] == [output.outputs for output in without]
    for output, plain in zip(with_it, without, strict=True):
        spec = output.metrics.speculative_decoding
        assert plain.metrics.speculative_decoding.num_draft_tokens == 0
        assert len(spec.acceptance_histogram) == 4 + 1
        assert spec.tokens_per_forward == pytest.approx(output.metrics.completion_tokens / max(1, spec.forwards))


def test_every_kind_without_weights_gives_the_same_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.0)
    expected = [output.outputs for output in llm.generate(_PROMPTS, params)]
    kinds = [name for name in default_registry().kinds() if not default_registry().get(name).artifact]
    for kind in ["none", *kinds]:
        with LLM(str(tiny_model(_MODEL)), spec_method=kind, **_SETTINGS) as other:
            assert other.info()["drafter"] == kind
            assert [output.outputs for output in other.generate(_PROMPTS, params)] == expected


def test_a_stop_string_anywhere_in_a_burst_cuts_as_without_speculation() -> None:
    """A drafter that is always right makes bursts of eight; the stop string ends at every offset of them."""
    path = str(tiny_model(_MODEL))
    prompt = list(range(40, 60))
    with LLM(path, spec_method="none", **_SETTINGS) as plain:
        (whole,) = plain.generate([prompt], SamplingParams(max_tokens=40, temperature=0.0))
        text = whole.text
        stops = {text[start : start + length] for start in range(4, 24) for length in (1, 3, 12)} - {""}
        params = [SamplingParams(max_tokens=40, temperature=0.0, stop=["\x00never", stop]) for stop in sorted(stops)]
        expected = [output.outputs for output in plain.generate([prompt] * len(params), params)]
    oracle = OracleDrafter(lambda request: whole.token_ids)
    with LLM(path, drafter=oracle, spec_tokens=7, **_SETTINGS) as fast:
        outputs = fast.generate([prompt] * len(params), params)
    assert [output.outputs for output in outputs] == expected
    assert max(output.metrics.speculative_decoding.mean_acceptance_length for output in outputs) > 3
    for output, one in zip(outputs, params, strict=True):
        assert one.stop_strings[1] not in output.text
        assert (output.finish_reason, output.stop_reason) == ("stop", one.stop_strings[1])
        assert len(output.token_ids) == output.metrics.completion_tokens


def test_streams_join_to_the_result(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.0)
    (expected,) = llm.generate(_PROMPTS[0], params)
    deltas = list(llm.stream(_PROMPTS[0], params))
    assert "".join(delta.text for delta in deltas) == expected.text
    assert deltas[-1].output is not None
    assert deltas[-1].output.outputs == expected.outputs


@pytest.mark.parametrize("prompt", ["", [], [""], [[]]])
def test_no_token_is_no_prompt_and_the_engine_lives_on(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="prompts"):
        llm.generate(prompt)
    assert len(llm.generate([[50]], SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids) == 8


def test_one_token_prompts_and_empty_messages(llm: LLM) -> None:
    for prompt in ([50], [0], llm.encode_chat([{"role": "user", "content": ""}])):
        on, off = (
            _outcome(llm, prompt, SamplingParams(max_tokens=8, seed=1, speculative=flag)) for flag in (True, False)
        )
        assert on == off


def test_what_the_engine_refuses_names_the_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"prompts\[1\]: prompt: .* is not an id of the vocabulary"):
        llm.generate([[5], [99999]])
    with pytest.raises(RequestError, match=r"prompts\[0\]: max_tokens: 5000 does not fit"):
        llm.generate([[5], [6]], SamplingParams(max_tokens=5000))
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].finish_reason in ("length", "stop")


def test_ids_alone() -> None:
    with LLM(str(tiny_model(_MODEL)), skip_tokenizer_init=True, **_SETTINGS) as bare:
        assert bare.tokenizer is None
        (output,) = bare.generate([[40, 41, 42]], SamplingParams(max_tokens=5, temperature=0.0))
        assert (output.text, len(output.prompt_token_ids)) == ("", 3)
        with pytest.raises(RequestError, match="skip_tokenizer_init"):
            bare.generate("text")


def test_asyncio_streams_and_cancellation(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.0)
    expected = [output.text for output in llm.generate(_PROMPTS, params)]

    async def main() -> None:
        async with await AsyncLLM.create(str(tiny_model(_MODEL)), spec_tokens=4, **_SETTINGS) as facade:

            async def text(prompt: str) -> str:
                return "".join([delta.text async for delta in facade.stream(prompt, params)])

            assert list(await asyncio.gather(*map(text, _PROMPTS))) == expected
            stream = facade.stream(_PROMPTS[0], SamplingParams(max_tokens=900, ignore_eos=True))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert (await facade.generate(_PROMPTS[0], params)).text == expected[0]
            assert facade.stats().finished.get("abort") == 1
        with pytest.raises(EngineClosed):
            await facade.generate("a")

    asyncio.run(main())
