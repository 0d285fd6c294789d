"""The numpy sampler: published generator vectors, the exact distribution, and filters on distributions done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.request import SamplingParams
from paceline.testing.noise import draw_token, filtered, gumbel_noise, keyed_words, philox4x32

# Known answers published with the generator (Random123, kat_vectors): counter, key, result.
KNOWN = [
    ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_words(counter: list[int], key: tuple[int, int], result: list[int]) -> None:
    assert philox4x32(np.array([counter], dtype=np.uint64), key)[0].tolist() == result


def test_the_word_of_an_id_does_not_depend_on_the_vocabulary_size() -> None:
    whole = keyed_words(2**63 + 5, 17, 50)
    assert all(np.array_equal(keyed_words(2**63 + 5, 17, n), whole[:n]) for n in (1, 2, 5, 49))
    assert not np.array_equal(keyed_words(5, 17, 50), whole), "the upper half of the seed is part of the key"
    assert not np.array_equal(keyed_words(2**63 + 5, 18, 50), whole)


def test_noise_is_finite_at_both_ends() -> None:
    noise = gumbel_noise(np.array([0, 2**32 - 1], dtype=np.uint64))
    assert np.isfinite(noise).all()
    assert noise[0] > noise[1]
    assert abs(float(noise.max())) <= 22.9 and abs(float(noise.min())) <= 22.9


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.06, 0.04]))
    params = SamplingParams(temperature=1.0)
    counts = np.bincount([draw_token(logits, params, 9, step)[0] for step in range(20000)], minlength=5) / 20000
    assert 0.5 * np.abs(counts - np.exp(logits)).sum() < 0.02
    hot = SamplingParams(temperature=2.0)
    flat = np.exp(logits / 2) / np.exp(logits / 2).sum()
    counts = np.bincount([draw_token(logits, hot, 9, step)[0] for step in range(20000)], minlength=5) / 20000
    assert 0.5 * np.abs(counts - flat).sum() < 0.02


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_k": -1}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 0.24}, {0, 1, 2, 3}),
        ({"top_k": 4, "top_p": 0.42}, {0}),  # 0.4 of 0.95 is 0.421: each filter renormalises what the last one left
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.8}, {0}),
    ],
)
def test_filters_keep_what_a_hand_calculation_keeps(options: dict[str, float], kept: set[int]) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05]))
    scores = filtered(logits, SamplingParams(temperature=1.0, **options))

    assert set(np.flatnonzero(np.isfinite(scores)).tolist()) == kept


def test_greedy_takes_the_lowest_of_equal_ids_and_reads_no_seed() -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0])
    for temperature in (0.0, 1e-8, 1e-5):
        params = SamplingParams(temperature=temperature, top_k=1, top_p=0.1)
        assert {draw_token(logits, params, seed, seed)[0] for seed in range(20)} == {1}


def test_the_lead_is_the_margin_to_the_second() -> None:
    token, lead = draw_token(np.array([1.0, 4.0, 3.5]), SamplingParams(temperature=0), 0, 0)
    assert (token, lead) == (1, 0.5)
    assert draw_token(np.array([1.0, 4.0]), SamplingParams(temperature=1, top_k=1), 0, 0)[1] == float("inf")
