"""Plain processors over lists, straight from their formulas, and programs of rounds that check a row against them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from paceline.sampling.processors.chain import RowProcessor, apply_processors
from paceline.sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget

VOCAB = 7
NEGATIVE = -math.inf


def plain_process(logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], s: ProcessorSettings) -> list:
    """Logits for the token after ``prompt + output``, everything computed anew."""
    x, text = list(logits), [*prompt, *output]
    for token, value in s.logit_bias.items():
        x[token] += value
    for token in plain_bans(text, len(output), s):
        x[token] = NEGATIVE
    forced = s.forced_tokens.get(len(output))
    if forced is None and s.thinking is not None:
        forced = plain_thinking(text, s.thinking)
    if forced is not None:
        x = [0.0 if token == forced else NEGATIVE for token in range(len(x))]
    seen = text[-s.penalty_window :] if s.penalty_window else text
    generated = output[-s.penalty_window :] if s.penalty_window else list(output)
    for token in range(len(x)):
        if token in seen:
            r = s.repetition_penalty
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        if token in generated:
            x[token] -= s.frequency_penalty * generated.count(token) + s.presence_penalty
    if s.dry is not None:
        for token, amount in plain_dry(text, s.dry).items():
            x[token] -= amount
    return x


def plain_bans(text: list[int], generated: int, s: ProcessorSettings) -> set[int]:
    banned = {word[-1] for word in s.bad_words if len(word) == 1 or text[-(len(word) - 1) :] == list(word[:-1])}
    n = s.no_repeat_ngram_size
    if n:
        ngrams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
        start = tuple(text[len(text) - n + 1 :]) if len(text) >= n - 1 else None
        banned |= {gram[-1] for gram in ngrams if gram[:-1] == start}
    return banned | (set(s.stop_ids) if generated < s.min_tokens else set())


def plain_thinking(text: list[int], budget: ThinkingBudget) -> int | None:
    """Read the text from its beginning; no automaton: compare its end with the markers after every token."""
    inside: list[int] | None = None
    since: list[int] = []
    for token in text:
        if inside is None:
            since.append(token)
            if since[-len(budget.start_ids) :] == list(budget.start_ids):
                inside = []
        else:
            inside.append(token)
            if inside[-len(budget.end_ids) :] == list(budget.end_ids):
                inside, since = None, []
    if inside is None or len(inside) < budget.budget:
        return None
    done = [
        k for k in range(len(budget.end_ids)) if k <= len(inside) and inside[len(inside) - k :] == [*budget.end_ids[:k]]
    ]
    return budget.end_ids[max(done)]


def plain_dry(text: list[int], dry: DrySettings) -> dict[int, float]:
    """Compare the end of the text with every earlier place, token by token."""
    part = text if dry.penalty_last_n < 0 else text[max(0, len(text) - dry.penalty_last_n) :]
    longest: dict[int, int] = {}
    for end in range(len(part) - 1):
        size = 0
        while size <= end and part[end - size] == part[-1 - size] and part[-1 - size] not in dry.breakers:
            size += 1
        follower = part[end + 1]
        if size >= dry.allowed_length and follower not in dry.breakers:
            longest[follower] = max(size, longest.get(follower, 0))
    return {token: dry.multiplier * dry.base ** (size - dry.allowed_length) for token, size in longest.items()}


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
