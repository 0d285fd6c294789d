"""Draws and acceptance on a CUDA device: the tokens of the CPU, and rows that do not depend on how many there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.sampling.kit import Case, params_of

from paceline.sampling import noise
from paceline.sampling.accept import accept_window
from paceline.sampling.draw import draw, draw_subset
from paceline.sampling.params import DrawParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CASES = [
    Case(0.0),
    Case(0.8, seed=1, step=7),
    Case(0.8, top_p=0.95, seed=2**64 - 3),
    Case(1.0, top_k=50, seed=4),
    Case(0.7, 40, 0.9, 0.02, seed=5),
    Case(1.0, min_p=0.1, seed=6),
    Case(0.9, typical_p=0.7, xtc_probability=0.5, xtc_threshold=0.02, spared=(3,), seed=7),
    Case(1.5, 20, 0.9, xtc_probability=0.5, filter_order="temperature_last", seed=8),
    Case(1.2, hlg=("median", 1.0, 0.5, 0.5), seed=9),
    Case(1.2, min_p=0.01, hlg=("entropy", 1.0, 0.5, 0.5), seed=10),
    Case(curve=((-9.0, -12.0), (-4.0, -3.0), (-1.0, -2.5)), seed=11),
]


COLUMNS = ("temperature", "top_k", "top_p", "min_p", "seed", "step")


def moved(params: DrawParams) -> DrawParams:
    return replace(params, **{name: getattr(params, name).cuda() for name in COLUMNS})


@pytest.mark.parametrize("vocab", [37, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_tokens_are_those_of_the_cpu(vocab, dtype, coupling):
    rows = 20 * len(CASES)
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, dtype=dtype, generator=generator) * 3
    logits[3, 5] = torch.nan
    logits[9] = -torch.inf
    logits[10:20] = logits[10:20].round()
    params = params_of([replace(case, step=case.step + i) for i in range(20) for case in CASES], coupling)
    here, there = draw(logits, params), draw(logits.cuda(), moved(params))
    assert torch.equal(here.tokens, there.tokens.cpu())
    assert torch.equal(here.bad, there.bad.cpu())
    ids = torch.arange(0, vocab, 3)
    subset = draw_subset(logits[:, ids].cuda(), ids.cuda(), moved(params))
    assert torch.equal(draw_subset(logits[:, ids], ids, params), subset.cpu())


def test_a_row_does_not_depend_on_the_number_of_rows():
    logits = torch.randn(40, 5003, generator=torch.Generator().manual_seed(1)).cuda() * 3
    params = params_of([replace(CASES[i % len(CASES)], seed=i) for i in range(40)])
    together = draw(logits, moved(params)).tokens
    for i in range(40):
        columns = {name: getattr(params, name)[i : i + 1] for name in COLUMNS}
        one = replace(params, chains=params.chains[i : i + 1], **columns)
        assert int(draw(logits[i : i + 1], moved(one)).tokens) == int(together[i])


def test_noise_is_that_of_the_cpu():
    seed, step, ids = torch.tensor([5, -3]), torch.tensor([0, 99]), torch.arange(4099)
    here = noise.philox(seed, step, ids)
    assert torch.equal(here, noise.philox(seed.cuda(), step.cuda(), ids.cuda()).cpu())
    assert torch.equal(here, noise.philox_range(seed.cuda(), step.cuda(), 4099).cpu())
    assert np.allclose(noise.gumbel(here), noise.gumbel(here.cuda()).cpu(), rtol=2e-7, atol=0)


def test_acceptance_is_that_of_the_cpu():
    generator = torch.Generator().manual_seed(0)

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(0, 4, shape, generator=generator)

    window = (ids(200, 6), ids(200, 5).int(), ids(200).int(), ids(200, 2) - 1, ids(200) + 1, ids(200) > 0)
    bad = ids(200, 6) == ids(200, 6) * ids(200, 6)
    here = accept_window(*window, bad)
    there = accept_window(*(part.cuda() for part in window), bad.cuda())
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a, b.cpu())
