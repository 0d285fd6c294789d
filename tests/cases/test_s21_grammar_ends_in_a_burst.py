"""S21: a grammar that ends inside a burst ends the answer there, whatever was proposed behind the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.features import EOS, PROMPTS, SPEC, decoder, tokenizer

from paceline.core.params import SamplingParams
from paceline.core.row import Row
from paceline.testing.drafters import RowDrafter
from paceline.testing.features import departures, open_llm
from paceline.testing.harness import Setup, leftovers
from paceline.testing.tokenizer import IM_END
from paceline.testing.toy import ToyTarget

A_INT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999999}},
    "required": ["a"],
    "additionalProperties": False,
}
#: Spaces between the parts are legal and likely; without them the document ends in time.
NO_SPACE = {i: -100.0 for i in range(len(tokenizer())) if not tokenizer().decode([i]).strip()}
PARAMS = SamplingParams(
    max_tokens=60, temperature=1.0, seed=6, structured_outputs={"json": A_INT}, logprobs=1, logit_bias=NO_SPACE
)
BEYOND = (IM_END, 5, 6, 7, IM_END)


class _PastTheEnd(RowDrafter):
    """Proposes nothing until ``before`` tokens are left, then all of them and more."""

    id = "past-the-end"

    def __init__(self, tokens: Sequence[int], before: int) -> None:
        super().__init__()
        self._tokens = tokens
        self._before = before

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        done = len(row.tokens) - row.prompt_tokens
        if len(self._tokens) - done > self._before:
            return ()
        return [*self._tokens[done:], *BEYOND][:depth]


def _problems(llm: Any) -> list[str]:
    handles = llm.engine._compiler.open_handles
    return leftovers(llm.engine) + ([f"{handles} grammar handles are open"] if handles else [])


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("depth", [4, 8])
@pytest.mark.parametrize("place", range(8))
def test_s21_the_end_at_each_place_of_a_burst(place: int, depth: int, device_round: bool) -> None:
    prompt = PROMPTS[place % 4]
    plain = decoder().run(prompt, PARAMS)
    drafter = _PastTheEnd(plain.tokens, place + 1)
    setup = Setup(rows=1, depth=depth, device_round=device_round)
    with open_llm(ToyTarget(SPEC), EOS, setup, drafter, tokenizer()) as llm:
        (output,) = llm.generate([list(prompt)], PARAMS)
        assert _problems(llm) == []
    assert departures(plain, output) == []
    assert output.finish_reason == "stop" and 0 <= json.loads(output.text)["a"] <= 999999
    assert output.text.endswith("}")


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("structured", [{"regex": "(ab|the )+c?"}, {"choice": ["a", "ab", "abc"]}, {"json": A_INT}])
def test_s21_ends_that_the_target_may_choose(structured: dict[str, Any], ignore_eos: bool) -> None:
    """Where the text may end or go on, an EOS among the drafts is drawn or not as in plain decoding."""
    for seed in range(6):
        params = SamplingParams(
            max_tokens=30, temperature=1.5, seed=seed, structured_outputs=structured, ignore_eos=ignore_eos
        )
        plain = decoder().run(PROMPTS[0], params)
        drafter = _PastTheEnd(plain.tokens, 3)
        with open_llm(ToyTarget(SPEC), EOS, Setup(rows=1, depth=6), drafter, tokenizer()) as llm:
            (output,) = llm.generate([list(PROMPTS[0])], params)
            assert departures(plain, output) == [] and _problems(llm) == []
