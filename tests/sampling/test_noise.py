"""Noise: Philox against published vectors and an independent implementation, Gumbel numbers against their formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import kit

from paceline.sampling import noise
from paceline.sampling.params import signed_seed

#: Counter, key and result of the known-answer tests published with Random123 for philox4x32, 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((kit.LOW,) * 4, (kit.LOW,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter, key, result):
    host = noise.philox4x32_host(tuple(np.array([c], np.uint64) for c in counter), tuple(map(np.uint64, key)))
    device = noise.philox4x32(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert [int(lane[0]) for lane in host] == list(result)
    assert [int(lane[0]) for lane in device] == list(result)
    assert kit.philox_block(counter, key) == list(result)


@given(st.lists(st.tuples(SEEDS, st.integers(0, 2**32 - 1)), min_size=1, max_size=4), st.data())
def test_words_are_those_of_the_keyed_counter(keys, data):
    ids = data.draw(st.lists(st.integers(0, 2**20), min_size=1, max_size=9))
    domain = data.draw(st.sampled_from([noise.TOKEN_NOISE, noise.INVERSE_CDF, noise.XTC]))
    seed = torch.tensor([signed_seed(s) for s, _ in keys])
    step = torch.tensor([t for _, t in keys])
    expected = [[kit.word(s, t, i, domain) for i in ids] for s, t in keys]
    assert noise.philox(seed, step, torch.tensor(ids), domain).tolist() == expected
    assert noise.philox(seed, step, torch.tensor([ids] * len(keys)), domain).tolist() == expected


@pytest.mark.parametrize("count", [1, 3, 4, 257])
def test_a_range_holds_the_words_of_its_ids(count):
    seed, step = torch.tensor([5, signed_seed(2**64 - 1)]), torch.tensor([0, 77])
    ids = torch.arange(count)
    assert torch.equal(noise.philox_range(seed, step, count), noise.philox(seed, step, ids))
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    single = noise.host_block_words(5, 0, blocks).reshape(-1)[:count]
    assert single.tolist() == noise.philox(seed, step, ids)[0].tolist()


def test_long_ranges_are_computed_in_parts_without_a_seam():
    last = noise._CHUNK + 1
    blocks = np.array([0, noise._CHUNK - 1, noise._CHUNK, last], np.uint64)
    whole = noise.host_block_words(9, 3, np.arange(last + 1, dtype=np.uint64))
    assert np.array_equal(whole[blocks.astype(int)], noise.host_block_words(9, 3, blocks))


@given(st.lists(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**31])), min_size=1))
def test_gumbel_numbers_follow_the_formula(words):
    expected = np.array([kit.gumbel(x) for x in words], np.float32)
    numbers = noise.gumbel(torch.tensor(words))
    assert numbers.dtype == torch.float32
    assert np.array_equal(numbers.numpy(), expected)
    assert np.all(expected > noise.LEAST_GUMBEL) and np.all(expected < noise.MOST_GUMBEL)


def test_the_bounds_of_the_noise_are_reached():
    extremes = noise.gumbel(torch.tensor([0, 2**32 - 1]))
    assert noise.MOST_GUMBEL - 0.02 < extremes[0] < noise.MOST_GUMBEL < 22.9
    assert noise.LEAST_GUMBEL < extremes[1] < noise.LEAST_GUMBEL + 0.02


def test_exponentials_are_never_below_their_uniform():
    words = np.unique(np.geomspace(1, 2**32 - 1, 20001).astype(np.uint64))
    uniform = np.minimum((words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32), 1 - 2.0**-24)
    assert np.all(noise.host_exponential(words) >= uniform)


@given(SEEDS, st.integers(0, 2**32 - 1), st.sampled_from([noise.INVERSE_CDF, noise.XTC]))
def test_a_uniform_number_is_that_of_the_first_word_of_its_domain(seed, step, domain):
    expected = (kit.word(seed, step, 0, domain) + 0.5) * 2.0**-32
    key = torch.tensor([signed_seed(seed)]), torch.tensor([step])
    assert noise.uniform(*key, domain).tolist() == [expected]
    assert noise.host_uniform(seed, step, domain) == noise.host_uniform(signed_seed(seed), step, domain) == expected
    assert 0 < expected < 1
