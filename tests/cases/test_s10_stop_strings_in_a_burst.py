"""S10 and S11: a stop string in a burst cuts text, ids, log-probabilities and usage where plain decoding does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.features import EOS, PROMPTS, SPEC, Engines, decoder, engines, make_drafter, tokenizer

from paceline import LLM
from paceline.core.params import SamplingParams
from paceline.testing.features import PlainTexts, open_llm
from paceline.testing.harness import Setup
from paceline.testing.toy import ToyTarget

DEPTH = 8
#: Tokens of several characters are likely: stops end inside them.
WORDY = {"max_tokens": 26, "temperature": 1.0, "seed": 11, "logit_bias": dict.fromkeys(range(260, 320), 5.0)}
PROMPT = PROMPTS[0]


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines(depth=DEPTH) as opened:
        yield opened


def ends() -> list[int]:
    """Where the text of the first 1, 2, ... tokens of the run without a stop ends."""
    tokens = decoder().run(PROMPT, SamplingParams(**WORDY)).tokens
    texts = PlainTexts(tokenizer())
    return [len(texts.certain(tokens[:count])) for count in range(1, len(tokens) + 1)]


def whole() -> str:
    return decoder().run(PROMPT, SamplingParams(**WORDY)).text


def stops(count: int, inside: int) -> list[str]:
    """Strings of 1 to 12 characters that end ``inside`` characters before the end of token ``count``."""
    end = ends()[count - 1] - inside
    return [whole()[end - size : end] for size in range(1, 13) if end - size >= 0]


@pytest.mark.parametrize("inside", [0, 1])
@pytest.mark.parametrize("count", range(2, 19))
def test_s10_stops_of_every_length_at_every_offset(count: int, inside: int, served: Engines) -> None:
    requests = [
        (PROMPT, SamplingParams(**WORDY, stop=[stop], include_stop_str_in_output=bool((count + len(stop)) % 2)))
        for stop in stops(count, inside)
    ]
    for number, drafter in enumerate(("none", "oracle", "adversarial", "ngram")):
        assert served.check(requests, drafter, bool((count + number) % 2)) == []
    longest = decoder().run(*requests[-1])
    assert longest.finish_reason == "stop" and longest.stop_reason == requests[-1][1].stop_strings[0]


def test_s10_the_burst_really_held_the_stop_and_more(served: Engines) -> None:
    stop = stops(5, 0)[3]
    (output,) = served.serve([(PROMPT, SamplingParams(**WORDY, stop=[stop]))], "oracle", False)
    figures = output.metrics.speculative_decoding
    assert figures.num_spec_steps == 1 and figures.num_draft_tokens == DEPTH and len(output.token_ids) <= 5


@pytest.mark.parametrize("drafter", ["none", "oracle", "ngram"])
def test_s10_the_later_listed_of_two_stops_comes_first(drafter: str, served: Engines) -> None:
    early, late = stops(4, 0)[2], stops(9, 0)[4]
    params = SamplingParams(**WORDY, stop=[late, early])
    assert served.check([(PROMPT, params)], drafter, True) == []
    assert served.serve([(PROMPT, params)], drafter, True)[0].stop_reason == early


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("count", range(2, 19, 3))
def test_s10_a_stream_never_shows_what_lies_beyond_the_cut(count: int, include: bool, served: Engines) -> None:
    for stop in stops(count, count % 2):
        params = SamplingParams(**WORDY, stop=[stop], include_stop_str_in_output=include)
        expected = decoder().run(PROMPT, params)
        shown = ""
        for delta in served.llm("oracle", True).stream(list(PROMPT), params):
            shown += delta.text
            assert expected.text.startswith(shown)
        assert shown == expected.text


@pytest.mark.parametrize("drafter", ["none", "oracle", "adversarial", "ngram"])
def test_s11_ids_logprobs_and_usage_are_cut_alike_and_the_talk_goes_on(drafter: str, served: Engines) -> None:
    for count in range(2, 19, 4):
        for stop in stops(count, 1)[1::3]:
            first = SamplingParams(**WORDY, stop=[stop], logprobs=2)
            (output,) = served.serve([(PROMPT, first)], drafter, True)
            assert served.check([(PROMPT, first)], drafter, True) == []
            assert output.logprobs is not None
            assert len(output.token_ids) == len(output.logprobs) == output.metrics.completion_tokens
            turn = (*PROMPT, *output.token_ids, 77, 40)
            assert served.check([(turn, SamplingParams(**WORDY, logprobs=2))], drafter, False) == []


def test_s10_stops_need_no_tokenizer_to_be_refused() -> None:
    setup = Setup(rows=1)
    with open_llm(ToyTarget(SPEC), EOS, setup, make_drafter("oracle", decoder()), None) as llm:
        with pytest.raises(Exception, match="stop"):
            llm.generate(list(PROMPT), SamplingParams(max_tokens=4, stop=["x"]))
        assert isinstance(llm, LLM) and llm.generate(list(PROMPT), SamplingParams(max_tokens=4))[0].text == ""
