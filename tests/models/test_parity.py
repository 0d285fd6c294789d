"""Logits and taps of every dense family equal those of transformers, however the tokens are fed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from paceline.models.binding import TargetBinding

from . import tiny

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LENGTH = 70


@pytest.fixture(scope="module", params=list(tiny.FAMILIES))
def pair(request: pytest.FixtureRequest) -> tuple[Any, TargetBinding]:
    model = tiny.reference(request.param)
    return model, tiny.target(model)


def tokens(length: int = LENGTH, seed: int = 0) -> list[int]:
    return torch.randint(3, 96, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def expected(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def test_whole_prefill(pair: tuple[Any, TargetBinding]) -> None:
    model, target = pair
    ids = tokens()
    hidden = tiny.Rows(target, 1).run({0: ids}).hidden
    torch.testing.assert_close(target.logits(hidden), expected(model, ids), **EXACT)


def test_chunks_then_single_tokens(pair: tuple[Any, TargetBinding]) -> None:
    model, target = pair
    ids, rows = tokens(), tiny.Rows(target, 1)
    cuts = [0, 1, 18, 34, 35, 60, *range(61, LENGTH + 1)]
    hidden = [rows.run({0: ids[start:end]}).hidden for start, end in itertools.pairwise(cuts)]
    torch.testing.assert_close(target.logits(torch.cat(hidden)), expected(model, ids), **EXACT)


def test_ragged_windows_of_several_rows(pair: tuple[Any, TargetBinding]) -> None:
    model, target = pair
    texts = [tokens(seed=seed) for seed in (1, 2, 3)]
    rows = tiny.Rows(target, 3)
    got: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for step in ([(0, 40), (1, 3)], [(2, 33), (0, 5), (1, 1)], [(1, 66), (2, 1), (0, 9)], [(0, 16), (2, 36)]):
        new = {row: texts[row][rows.lengths[row] : rows.lengths[row] + count] for row, count in step}
        hidden = rows.run(new).hidden
        for (row, _), part in zip(step, hidden.split([count for _, count in step]), strict=True):
            got[row].append(part)
    for row, text in enumerate(texts):
        logits = target.logits(torch.cat(got[row]))
        torch.testing.assert_close(logits, expected(model, text), **EXACT)


@torch.inference_mode()
def test_taps_are_raw_layer_outputs(pair: tuple[Any, TargetBinding]) -> None:
    model, target = pair
    ids, taps = tokens(20), (2, -1, 0)
    assert target.supports_taps(taps) and not target.supports_taps((4,)) and not target.supports_taps((-2,))
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    result = tiny.Rows(target, 1).run({0: ids}, taps)
    assert result.context is not None
    torch.testing.assert_close(result.context, torch.cat([states[tap + 1][0] for tap in taps], -1), **EXACT)
    torch.testing.assert_close(result.hidden, states[-1][0], **EXACT)


@torch.inference_mode()
def test_the_last_layers_tap_is_not_normed(pair: tuple[Any, TargetBinding]) -> None:
    """Transformers keeps no raw output of the last layer in ``hidden_states``, so a hook reads it."""
    model, target = pair
    seen: list[torch.Tensor] = []
    handle = model.model.layers[-1].register_forward_hook(
        lambda _module, _args, output: seen.append(output[0] if isinstance(output, tuple) else output)
    )
    ids = tokens(20)
    expected(model, ids)
    handle.remove()
    result = tiny.Rows(target, 1).run({0: ids}, (3,))
    assert result.context is not None
    torch.testing.assert_close(result.context, seen[0].view(20, -1), **EXACT)
