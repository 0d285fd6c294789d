"""Known faults of other engines, each as a decoding run whose stream must be that of one token at a time."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.processors_kit import plain_process

from paceline.core.acceptance import Acceptance
from paceline.core.request import SamplingParams
from paceline.sampling.draw import draw
from paceline.sampling.params import DrawParams
from paceline.sampling.processors.chain import RowProcessor, apply_processors
from paceline.sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget

VOCAB, EOS, START, END = 24, 0, 20, 21
PROMPT = [3, 4, 5, 3, 4]


def target(text: list[int], eos_at: int | None = None) -> torch.Tensor:
    """A loop-prone model: logits [V] of the next token by the last two; ``eos_at``: EOS wins at that output place."""
    generator = torch.Generator().manual_seed(text[-1] * 31 + text[-2])
    logits = torch.randn(VOCAB, generator=generator, dtype=torch.float64)
    logits[[EOS, END]] = -4.0
    logits[3 + (text[-1] - 2) % 4] += 1.5
    if eos_at is not None and len(text) - len(PROMPT) >= eos_at - 1:
        logits[EOS] = 50.0
    return logits


def choose(logits: torch.Tensor, step: int, temperature: float) -> list[int]:
    options = [SamplingParams(temperature=temperature)] * len(logits)
    steps = list(range(step, step + len(logits)))
    return draw(logits, DrawParams.of(options, [7] * len(logits), steps)).tokens.tolist()


def plain(settings: ProcessorSettings, count: int, temperature: float = 0.0, eos_at: int | None = None) -> list[int]:
    """One token at a time, by the plain processors; ends with EOS."""
    output: list[int] = []
    while len(output) < count and EOS not in output:
        values = plain_process(target(PROMPT + output, eos_at).tolist(), PROMPT, output, settings)
        output += choose(torch.tensor([values], dtype=torch.float64), len(output), temperature)
    return output


def guesses(drafter: str, known: list[int], done: int, depth: int) -> list[int]:
    """Proposals: the right ones, wrong ones, right ones with an error at place 2, all EOS, or none."""
    right = known[done : done + depth]
    if drafter == "wrong":
        return [(token + 1) % VOCAB for token in right]
    if drafter == "half":
        return [token if place != 2 else (token + 1) % VOCAB for place, token in enumerate(right)]
    return {"right": right, "eos": [EOS] * len(right), "none": []}[drafter]


def speculative(
    settings: ProcessorSettings, want: list[int], drafter: str, temperature: float = 0.0, eos_at: int | None = None
) -> list[int]:
    """The same request by windows of up to four proposals."""
    processor = RowProcessor(settings, PROMPT)
    output: list[int] = []
    while len(output) < len(want) and EOS not in output:
        proposals = guesses(drafter, want, len(output), 4)
        texts = [PROMPT + output + proposals[:place] for place in range(len(proposals) + 1)]
        logits = torch.stack([target(text, eos_at) for text in texts])
        apply_processors(logits, [processor], [proposals])
        acceptance = Acceptance(proposals, len(want) - len(output), {EOS})
        for token in choose(logits, len(output), temperature):
            acceptance.accept(token)
            if acceptance.done:
                break
        processor.observe(acceptance.emitted)
        output += acceptance.emitted + ([EOS] if acceptance.saw_eos else [])
    return output


DRAFTERS = ("right", "wrong", "half", "eos", "none")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("eos_at", [1, 2, 3, 4, 5, 6])
def test_eos_is_allowed_exactly_after_min_tokens(drafter, eos_at):
    for min_tokens in range(9):
        settings = ProcessorSettings(min_tokens=min_tokens, stop_ids=(EOS,))
        want = plain(settings, 12, eos_at=eos_at)
        assert want.index(EOS) == max(min_tokens, eos_at - 1)
        assert speculative(settings, want, drafter, eos_at=eos_at) == want


PENALTIES = {
    "frequency": ProcessorSettings(frequency_penalty=0.7),
    "presence": ProcessorSettings(presence_penalty=0.5),
    "repetition": ProcessorSettings(repetition_penalty=1.2),
    "window": ProcessorSettings(repetition_penalty=1.2, frequency_penalty=0.7, penalty_window=16),
    "dry": ProcessorSettings(dry=DrySettings(0.8)),
    "bigrams": ProcessorSettings(no_repeat_ngram_size=2),
    "all": ProcessorSettings(frequency_penalty=0.7, presence_penalty=0.5, repetition_penalty=1.2, dry=DrySettings(0.8)),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", PENALTIES)
def test_strength_does_not_depend_on_acceptance(name, temperature):
    want = plain(PENALTIES[name], 120, temperature)
    assert want != plain(ProcessorSettings(), 120, temperature), "the penalty had nothing to do"
    for drafter in DRAFTERS:
        assert speculative(PENALTIES[name], want, drafter, temperature) == want


def test_a_bias_of_a_hundred_decides_every_token_and_a_negative_one_none():
    assert set(plain(ProcessorSettings(logit_bias={9: 100.0}), 8)) == {9}
    free = plain(ProcessorSettings(), 40)
    never = ProcessorSettings(logit_bias={free[0]: -100.0}, bad_words=((free[1], free[2]),))
    want = plain(never, 40)
    assert free[0] not in want
    for settings in (never, ProcessorSettings(logit_bias={9: 100.0})):
        want = plain(settings, 40)
        assert all(speculative(settings, want, drafter) == want for drafter in DRAFTERS)


@pytest.mark.parametrize("end", [(END,), (END, 22, 23)], ids=["one token", "three tokens"])
@pytest.mark.parametrize("budget", [0, 8, 9, 10, 11])
def test_a_thinking_block_that_never_closes_is_closed_at_its_budget(budget, end):
    settings = ProcessorSettings(forced_tokens={2: START}, thinking=ThinkingBudget((START,), end, budget))
    want = plain(settings, 30)
    assert [place for place, token in enumerate(want) if token == END] == [3 + budget]
    assert tuple(want[3 + budget : 3 + budget + len(end)]) == end
    for drafter in DRAFTERS:
        assert speculative(settings, want, drafter) == want


def test_tokens_of_an_open_block_in_the_prompt_count():
    settings = ProcessorSettings(thinking=ThinkingBudget((3, 4, 5), (END,), 6))
    assert plain(settings, 6).index(END) == 4  # the prompt ends with two tokens of the block
