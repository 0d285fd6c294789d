"""Processors against those of transformers on random texts, where it has the same one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.sampling.processors_kit import logits_of
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from paceline.sampling.processors.chain import RowProcessor, apply_processors
from paceline.sampling.processors.settings import ProcessorSettings

VOCAB = 20
WORDS = [[3], [5, 6], [1, 2, 3], [0, 1], [7, 7, 7]]
CASES: dict[str, tuple[ProcessorSettings, Callable[[int], LogitsProcessor]]] = {
    "repetition": (
        ProcessorSettings(repetition_penalty=1.3),
        lambda prompt: RepetitionPenaltyLogitsProcessor(1.3),
    ),
    "repetition below one": (
        ProcessorSettings(repetition_penalty=0.8),
        lambda prompt: RepetitionPenaltyLogitsProcessor(0.8),
    ),
    "bigrams": (ProcessorSettings(no_repeat_ngram_size=2), lambda prompt: NoRepeatNGramLogitsProcessor(2)),
    "trigrams": (ProcessorSettings(no_repeat_ngram_size=3), lambda prompt: NoRepeatNGramLogitsProcessor(3)),
    "bad words": (
        ProcessorSettings(bad_words=tuple(tuple(word) for word in WORDS)),
        lambda prompt: NoBadWordsLogitsProcessor(WORDS),
    ),
    "min tokens": (
        ProcessorSettings(min_tokens=5, stop_ids=(2, 9)),
        lambda prompt: MinNewTokensLengthLogitsProcessor(prompt, 5, [2, 9]),
    ),
    "bias": (
        ProcessorSettings(logit_bias={4: 2.5, 11: -3.0}),
        lambda prompt: SequenceBiasLogitsProcessor({(4,): 2.5, (11,): -3.0}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_window_equals_the_steps_of_transformers(name):
    settings, make = CASES[name]
    generator = torch.Generator().manual_seed(1)
    changed = 0
    for prompt_length in (1, 2, 5, 30):
        peer = make(prompt_length)
        text = torch.randint(0, 8, (prompt_length + 12,), generator=generator).tolist()
        processor = RowProcessor(settings, text[:prompt_length])
        for start in range(prompt_length, len(text), 4):
            proposals = text[start : start + 4]
            logits = logits_of(len(proposals) + 1, start, torch.float32, VOCAB)
            got = apply_processors(logits.clone(), [processor], [proposals])
            for place in range(len(proposals) + 1):
                want = peer(torch.tensor([text[: start + place]]), logits[place : place + 1].clone())
                torch.testing.assert_close(got[place], want[0], rtol=1e-6, atol=1e-6)
                changed += not torch.equal(want[0], logits[place])
            processor.observe(proposals)
    assert changed > 3
