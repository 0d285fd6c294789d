"""Log-probabilities: values, ranks and top lists by the definition, whatever stands beside a position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from paceline.core.request import SamplingParams
from paceline.sampling import logprobs
from paceline.sampling.draw import draw
from paceline.sampling.logprobs import PromptLogprobs, TokenLogprobs, Wanted, capture_logprobs
from paceline.sampling.params import DrawParams

DTYPES = (torch.float32, torch.float64)


def plain_logprobs(values: list[float], token: int, top: int) -> TokenLogprobs:
    """One position by the definition, in double precision."""
    peak = max(values)
    total = math.fsum(math.exp(value - peak) for value in values)
    exact = [value - peak - math.log(total) if value > -math.inf else -math.inf for value in values]
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    ids = order[: len(values) if top == -1 else top]
    return TokenLogprobs(token, exact[token], order.index(token) + 1, tuple(ids), tuple(exact[i] for i in ids))


def assert_close(got: TokenLogprobs, want: TokenLogprobs, tolerance: float) -> None:
    assert (got.token_id, got.rank, got.top_ids) == (want.token_id, want.rank, want.top_ids)
    pairs = zip((got.logprob, *got.top_logprobs), (want.logprob, *want.top_logprobs), strict=True)
    assert all(a == b or abs(a - b) <= tolerance for a, b in pairs)


#: Smooth values, many ties, and banned ids.
VALUES = st.floats(-20, 20, width=32) | st.integers(-1, 1).map(float) | st.just(-math.inf)


@st.composite
def batches(draw_from: st.DrawFn) -> tuple[list[list[float]], list[Wanted]]:
    vocab = draw_from(st.integers(2, 12))
    rows = draw_from(st.lists(st.lists(VALUES, min_size=vocab - 1, max_size=vocab - 1), min_size=1, max_size=4))
    entry = st.builds(
        Wanted, st.integers(0, len(rows) - 1), st.integers(0, vocab - 1), st.sampled_from([-1, 0, 1, 2, 3, 5, 20])
    )
    return [[*row, 0.5] for row in rows], draw_from(st.lists(entry, max_size=6))


def check_batch(batch: tuple[list[list[float]], list[Wanted]], dtype: torch.dtype = torch.float64) -> None:
    rows, wanted = batch
    found = capture_logprobs(torch.tensor(rows, dtype=dtype), wanted)
    assert len(found) == len(wanted)
    for got, entry in zip(found, wanted, strict=True):
        assert_close(got, plain_logprobs(rows[entry.place], entry.token_id, entry.top), 1e-5)


@given(batches(), st.sampled_from([*DTYPES, torch.float16]))
@settings(max_examples=300)
def test_positions_with_their_own_counts_get_the_values_of_the_definition(batch, dtype):
    rows, wanted = batch
    if dtype == torch.float16:
        rows = torch.tensor(rows, dtype=dtype).double().tolist()
    check_batch((rows, wanted), dtype)


def test_an_unordered_top_list_is_caught(monkeypatch):
    """Broken: ties in the order in which a top-k happens to give them."""

    def careless(logits: torch.Tensor, count: int) -> torch.Tensor:
        return torch.topk(logits.flip(1), count, dim=-1).indices.mul(-1).add(logits.shape[1] - 1)

    def fails(batch) -> bool:
        try:
            check_batch(batch)
        except AssertionError:
            return True
        return False

    monkeypatch.setattr(logprobs, "likeliest", careless)
    find(batches(), fails, settings=settings(max_examples=2000, phases=[Phase.generate]))


def random_logits(positions: int, vocab: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(positions, vocab, generator=torch.Generator().manual_seed(vocab), dtype=dtype) * 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [7, 1000, 4099, 50257])
def test_a_position_does_not_see_its_neighbours(vocab, dtype, monkeypatch):
    """Bitwise the same alone, in any slice, and beside rows that ask for more."""
    logits = random_logits(9, vocab, dtype)
    wanted = [Wanted(place, (place * 7919) % vocab, (0, 3, 20)[place % 3]) for place in range(9)]
    together = capture_logprobs(logits, wanted)
    for entry, want in zip(wanted, together, strict=True):
        alone = capture_logprobs(logits[entry.place : entry.place + 1], [Wanted(0, entry.token_id, entry.top)])
        assert alone == [want]
    monkeypatch.setattr(logprobs, "SLICE_ELEMENTS", 2 * vocab)
    assert capture_logprobs(logits, wanted) == together
    assert capture_logprobs(logits, [*wanted, Wanted(0, 0, -1)])[:-1] == together


@pytest.mark.parametrize("kind", ["smooth", "ties", "banned"])
def test_a_short_list_of_a_wide_vocabulary_is_that_of_a_full_sort(kind):
    logits = random_logits(6, 5003)
    if kind == "ties":
        logits = logits.round()
    elif kind == "banned":
        logits[:, 4:] = -math.inf
        logits[:3, 5002] = 9.0
    for count in (1, 5, 19):
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
        assert torch.equal(logprobs.likeliest(logits, count), order[:, :count])


def test_the_greedy_token_heads_its_list():
    """Also where logits are equal: draws and lists order ties alike."""
    logits = torch.from_numpy(np.random.default_rng(0).integers(-2, 3, size=(50, 40)).astype(np.float32))
    options = [SamplingParams(temperature=0.0)] * len(logits)
    tokens = draw(logits, DrawParams.of(options, [0] * 50, [0] * 50)).tokens.tolist()
    for record in capture_logprobs(logits, [Wanted(place, token, 5) for place, token in enumerate(tokens)]):
        assert record.rank == 1 and record.top_ids[0] == record.token_id
        assert list(record.top_logprobs) == sorted(record.top_logprobs, reverse=True)


def test_the_way_of_devices_agrees_with_that_of_the_processor():
    """Sums over integers give what sums in floating point give."""
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-7)):
        logits = random_logits(4, 5003, dtype)
        ids = torch.arange(5003).expand(4, -1)
        device = logprobs.log_softmax_by_units(logits, ids)
        torch.testing.assert_close(device, torch.log_softmax(logits, -1), rtol=0, atol=tolerance)


def test_capturing_changes_no_logit():
    logits = random_logits(3, 100)
    kept = logits.clone()
    capture_logprobs(logits, [Wanted(1, 4, 10), Wanted(2, 5, -1)])
    assert torch.equal(logits, kept)
    assert capture_logprobs(logits, []) == []


PROMPT = [5, 1, 4, 4, 9, 0, 2, 7, 7, 3, 8]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=11), st.booleans(), st.sampled_from([0, 2, -1]))
def test_prompt_values_are_the_same_for_every_division_into_chunks(sizes, by_hidden, top):
    """Position t scores token t + 1; the first token has no value and the last position is not used."""
    logits = random_logits(len(PROMPT), 10)
    whole = PromptLogprobs(PROMPT, top)
    whole.add(0, logits)
    assert whole.complete and len(whole.entries) == len(PROMPT) and whole.entries[0] is None
    for place, entry in enumerate(whole.entries[1:]):
        assert_close(entry, plain_logprobs(logits[place].tolist(), PROMPT[place + 1], top), 1e-5)
    chunked = PromptLogprobs(PROMPT, top)
    start = 0
    for size in [*sizes, len(PROMPT)]:
        part = logits[start : start + size]
        if by_hidden:
            chunked.add_hidden(start, part, lambda hidden: hidden)
        else:
            chunked.add(start, part)
        start = min(start + size, len(PROMPT))
    assert chunked.entries == whole.entries


def test_hidden_states_are_projected_a_few_at_a_time():
    sizes = []

    def project(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return hidden

    prompt = PromptLogprobs([1] * 75, 0)
    prompt.add_hidden(0, random_logits(75, 10), project)
    assert prompt.complete and sizes == [32, 32, 10]


def test_missing_chunks_show():
    prompt = PromptLogprobs(PROMPT, 0)
    prompt.add(0, random_logits(4, 10))
    assert not prompt.complete and prompt.entries[5] is None and prompt.entries[4] is not None
    assert PromptLogprobs([3], 1).complete
