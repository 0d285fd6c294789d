"""S22: drafts that a grammar forbids cost their places only; matchers and neighbours never notice."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.features import EOS, PROMPTS, SPEC, Request, decoder, tokenizer
from tests.support.grammars import GRAMMARS

from paceline.core.params import SamplingParams
from paceline.core.row import Row
from paceline.testing.drafters import RowDrafter, upcoming
from paceline.testing.features import FeatureDecoder, departures, open_llm
from paceline.testing.harness import Setup, leftovers
from paceline.testing.tokenizer import PAD
from paceline.testing.toy import ToyTarget

STRUCTURED: tuple[dict[str, Any], ...] = (
    {"choice": GRAMMARS["choice"]},
    {"regex": "[a-z]{4}-[0-9]{20}"},
    {"json": GRAMMARS["json"]},
    {"json": {"type": "array", "items": {"enum": ["one", "other"]}, "minItems": 3, "maxItems": 6}},
)


class _Illegal(RowDrafter):
    """The right text, with an id that no grammar permits at one place of each round."""

    id = "illegal"

    def __init__(self, plain: FeatureDecoder, place: int) -> None:
        super().__init__()
        self._plain = plain
        self._place = place

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        proposal = upcoming(self._plain.recorded, row)[:depth]
        return [PAD if place == self._place else token for place, token in enumerate(proposal)]


def crowd() -> list[Request]:
    """Eight rows, half of them without a grammar."""
    requests: list[Request] = []
    for place in range(8):
        options: dict[str, Any] = {"temperature": 1.0, "seed": place}
        if place % 2:
            requests.append((PROMPTS[place % 4], SamplingParams(max_tokens=40, **options)))
        else:
            structured = STRUCTURED[place // 2]
            requests.append((PROMPTS[0], SamplingParams(max_tokens=80, **options, structured_outputs=structured)))
    return requests


def valid(structured: dict[str, Any], text: str) -> bool:
    if "choice" in structured:
        return text in structured["choice"]
    if "regex" in structured:
        return re.fullmatch(structured["regex"], text) is not None
    json.loads(text)
    return True


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("place", range(4))
def test_s22_illegal_at_one_place(place: int, device_round: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    setup = Setup(rows=8, depth=4, device_round=device_round)
    rounds = 0
    with open_llm(ToyTarget(SPEC), EOS, setup, _Illegal(decoder(), place), tokenizer()) as llm:
        for turn in range(3):
            requests = crowd()[turn:] + crowd()[:turn]
            outputs = llm.generate([list(prompt) for prompt, _ in requests], [params for _, params in requests])
            for (prompt, params), output in zip(requests, outputs, strict=True):
                assert departures(decoder().run(prompt, params), output) == []
                if params.structured_outputs and output.finish_reason == "stop":
                    assert valid(dict(params.structured_outputs), output.text)
                rounds += output.metrics.speculative_decoding.num_spec_steps
        assert leftovers(llm.engine) == [] and llm.stats().drafter_failures == 0  # type: ignore[arg-type]
    assert rounds > 100
    assert caplog.records == []
