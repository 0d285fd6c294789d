"""Packed masks and their application to logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.grammar.bits import _apply_on_device, apply_bitmask, mask_words, packed, permits, permitted_ids


def _masks(permitted: list[list[int]], vocab_size: int) -> np.ndarray:
    return np.stack([packed(ids, vocab_size) for ids in permitted]).view(np.int32)


@given(st.integers(1, 200), st.data())
def test_packing_and_reading_are_inverse(vocab_size: int, data: st.DataObject) -> None:
    ids = data.draw(st.sets(st.integers(0, vocab_size - 1)))
    mask = packed([*ids, -1, vocab_size], vocab_size)
    assert mask.shape == (mask_words(vocab_size),) and permitted_ids(mask.view(np.int32)) == sorted(ids)
    assert [t for t in range(-2, vocab_size + 40) if permits(mask.view(np.int32), t)] == sorted(ids)


@given(st.integers(1, 100), st.integers(1, 5), st.data())
def test_only_permitted_logits_stay(vocab_size: int, count: int, data: st.DataObject) -> None:
    permitted = [sorted(data.draw(st.sets(st.integers(0, vocab_size - 1)))) for _ in range(count)]
    rows = data.draw(st.permutations(range(count + 2)))[:count]
    logits = torch.randn(count + 2, vocab_size, generator=torch.Generator().manual_seed(7))
    expected = logits.clone()
    for row, ids in zip(rows, permitted, strict=True):
        for token in range(vocab_size):
            if token not in ids:
                expected[row, token] = -torch.inf
    masks = _masks(permitted, vocab_size)
    changed = logits.clone()
    assert apply_bitmask(changed, masks, rows) is changed
    assert torch.equal(changed, expected)
    assert torch.equal(apply_bitmask(logits.clone(), torch.from_numpy(masks), rows), expected)
    assert torch.equal(apply_bitmask(logits[rows].clone(), masks), expected[rows])


@given(st.integers(1, 100), st.integers(1, 4), st.integers(0, 2**31), st.booleans())
def test_the_way_of_devices_equals_that_of_the_host(vocab_size: int, count: int, seed: int, some: bool) -> None:
    rng = np.random.default_rng(seed)
    masks = rng.integers(-(2**31), 2**31, (count, mask_words(vocab_size)), dtype=np.int64).astype(np.int32)
    rows = rng.permutation(count + 1)[:count].tolist() if some else None
    logits = torch.randn(count + some, vocab_size, generator=torch.Generator().manual_seed(7))
    logits[0, 0] = torch.nan
    expected = apply_bitmask(logits.clone(), masks, rows)
    actual = _apply_on_device(logits.clone(), torch.from_numpy(masks), rows)
    assert torch.equal(actual.nan_to_num(nan=123.0), expected.nan_to_num(nan=123.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_so(value: float) -> None:
    logits = torch.zeros(2, 40)
    logits[0, 30] = value
    apply_bitmask(logits, _masks([[1, 2], [3]], 40))
    assert not torch.isfinite(logits[0].amax()) and logits[1].amax() == 0.0


def test_masks_and_rows_must_agree_in_number() -> None:
    with pytest.raises(ValueError, match="argument"):
        apply_bitmask(torch.zeros(3, 40), _masks([[1], [2]], 40))
