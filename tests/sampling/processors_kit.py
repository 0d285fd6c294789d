"""Programs of rounds that check a row's processors against the plain ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from paceline.sampling.processors.chain import RowProcessor, apply_processors
from paceline.sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget
from paceline.testing.plain_processors import plain_process

VOCAB = 7


IDS = st.integers(0, VOCAB - 1)
SEQUENCES = st.lists(IDS, min_size=1, max_size=3).map(tuple)
#: Positive and negative, so that the forms of each penalty differ.
WEIGHTS = st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 3))

SETTINGS = st.builds(
    ProcessorSettings,
    logit_bias=st.dictionaries(IDS, st.sampled_from([-math.inf, -100.0, -1.5, 0.25, 100.0]), max_size=3),
    bad_words=st.lists(SEQUENCES, max_size=4).map(tuple),
    no_repeat_ngram_size=st.sampled_from([0, 0, 1, 2, 3]),
    min_tokens=st.integers(0, 8),
    stop_ids=st.lists(IDS, max_size=2, unique=True).map(tuple),
    forced_tokens=st.dictionaries(st.integers(0, 12), IDS, max_size=2),
    thinking=st.none() | st.builds(ThinkingBudget, SEQUENCES, SEQUENCES, st.integers(0, 4)),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.2, 2.0]),
    presence_penalty=WEIGHTS,
    frequency_penalty=WEIGHTS,
    penalty_window=st.sampled_from([0, 0, 1, 2, 5]),
    dry=st.none()
    | st.builds(
        DrySettings,
        multiplier=st.sampled_from([0.0, 0.8]),
        base=st.sampled_from([1.0, 1.75]),
        allowed_length=st.integers(1, 3),
        penalty_last_n=st.sampled_from([-1, -1, 0, 2, 6]),
        breakers=st.frozensets(IDS, max_size=2),
    ),
)


@dataclass(frozen=True)
class Program:
    """A row's life: each round's proposals and how many of them its draws match before ``correction`` differs."""

    settings: ProcessorSettings
    prompt: list[int]
    rounds: list[tuple[list[int], int, int]]

    def bursts(self) -> list[tuple[list[int], list[int]]]:
        """Proposals and used draws of each round."""
        return [(guess, [*guess[:kept], correction]) for guess, kept, correction in self.rounds]


#: Few ids and a loop-prone choice, so that n-grams and repetitions come up.
TEXTS = st.lists(IDS, max_size=6) | st.lists(st.integers(0, 1), max_size=6)
PROGRAMS = st.builds(
    Program,
    settings=SETTINGS,
    prompt=st.lists(IDS, min_size=1, max_size=10) | st.lists(st.integers(0, 1), min_size=1, max_size=10),
    rounds=st.lists(st.tuples(TEXTS, st.integers(0, 6), IDS), min_size=1, max_size=5),
)


def logits_of(positions: int, seed: int, dtype: torch.dtype = torch.float64, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(positions, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


def expected_window(program: Program, output: list[int], proposals: list[int], logits: torch.Tensor) -> torch.Tensor:
    rows = [
        plain_process(values, program.prompt, [*output, *proposals[:place]], program.settings)
        for place, values in enumerate(logits.tolist())
    ]
    return torch.tensor(rows, dtype=logits.dtype)


def check_program(program: Program, kind: type[RowProcessor] = RowProcessor) -> None:
    """Run the rounds; at every position of every window the processed logits are those of the plain computation."""
    processor = kind(program.settings, program.prompt)
    output: list[int] = []
    for number, (proposals, used) in enumerate(program.bursts()):
        logits = logits_of(len(proposals) + 1, number)
        want = expected_window(program, output, proposals, logits)
        torch.testing.assert_close(apply_processors(logits, [processor], [proposals]), want, rtol=1e-12, atol=1e-12)
        processor.observe(used)
        output += used
        assert processor.history.tokens == [*program.prompt, *output]
