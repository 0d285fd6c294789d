"""Rarer filters: typical-p and XTC against their published definitions, both orders, refusals, special ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.kit import Case, params_of, permitted
from tests.sampling.test_draw import logits_of
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from paceline.core.errors import RequestError
from paceline.core.params import SamplingParams
from paceline.sampling import chains, host
from paceline.sampling.draw import draw, draw_together

PROBABILITIES = (0.4, 0.3, 0.2, 0.1)


def seen(case: Case, probabilities: Sequence[float] = PROBABILITIES, vocab: int = 8, rows: int = 200) -> set[int]:
    """Ids drawn for many seeds, over narrow rows and over wide ones."""
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, : len(probabilities)] = torch.log(torch.tensor(probabilities))
    cases = [replace(case, seed=seed) for seed in range(rows)]
    return set(draw(logits.expand(rows, -1), params_of(cases)).tokens.tolist())


def kept(logits: np.ndarray, case: Case) -> set[int]:
    """Ids that may be drawn, as the way of devices computes them."""
    params = params_of([case])
    table = torch.from_numpy(logits)[None]
    scaled = table / params.temperature.unsqueeze(1)
    return set(chains.permitted_rows(table, scaled, params)[0].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("mass", [0.05, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("shape", ["normal", "flat", "integers", "steep", "pair"])
def test_typical_p_keeps_what_transformers_keeps(shape, mass):
    for seed in range(20):
        logits = logits_of(shape, 300, seed, np.float64)
        warped = TypicalLogitsWarper(mass=float(np.float32(mass)))(None, torch.from_numpy(logits)[None])
        assert kept(logits, Case(1.0, typical_p=mass)) == set(warped.isfinite()[0].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("seed", range(12))
def test_the_usual_order_is_that_of_transformers(seed):
    rng = np.random.default_rng(seed)
    case = Case(
        temperature=float(rng.choice([0.5, 1.0, 2.0])),
        top_k=int(rng.choice([5, 20, 80])),
        top_p=float(rng.choice([0.5, 0.75, 0.9375])),
        min_p=float(rng.choice([0.125, 0.03125])),
        typical_p=float(rng.choice([0.25, 0.5, 0.875])),
    )
    logits = logits_of("normal", 120, seed, np.float64)
    scores = torch.from_numpy(logits)[None] / case.temperature
    for warper in (
        TopKLogitsWarper(case.top_k),
        TopPLogitsWarper(case.top_p),
        MinPLogitsWarper(case.min_p),
        TypicalLogitsWarper(case.typical_p),
    ):
        scores = warper(None, scores)
    assert kept(logits, case) == set(scores.isfinite()[0].nonzero()[:, 0].tolist())


def test_typical_p_may_drop_the_likeliest_id():
    probabilities = (0.4, *[0.06] * 10)  # -log p is 0.92 and 2.81, the entropy 2.05
    assert seen(Case(typical_p=0.5), probabilities, vocab=16) == set(range(1, 11))
    assert seen(Case(typical_p=0.5), probabilities, vocab=1500) == set(range(1, 11))


@pytest.mark.parametrize("vocab", [8, 1600])
@pytest.mark.parametrize(
    ("threshold", "spared", "allowed"),
    [
        (0.15, (), {2, 3}),  # 0.4 and 0.3 go, 0.2 is the least likely of those above the threshold
        (0.25, (), {1, 2, 3}),
        (0.35, (), {0, 1, 2, 3}),  # one id alone is no choice
        (0.6, (), {0, 1, 2, 3}),
        (0.05, (), {3}),
        (0.15, (0,), {0, 2, 3}),
        (0.15, (2,), {2, 3}),  # a spared id counts as a choice
        (0.15, (0, 1, 9999), {0, 1, 2, 3}),
    ],
)
def test_xtc_drops_all_top_choices_but_the_last(vocab, threshold, spared, allowed):
    case = Case(xtc_probability=1.0, xtc_threshold=threshold, spared=spared)
    assert seen(case, vocab=vocab) == allowed


@pytest.mark.parametrize("vocab", [8, 1600])
def test_xtc_of_equal_choices_leaves_the_last_id(vocab):
    assert seen(Case(xtc_probability=1.0, xtc_threshold=0.25), [0.25] * 4, vocab) == {3}


def test_xtc_acts_with_its_probability_and_only_by_seed_and_step():
    rows = 4000
    logits = torch.log(torch.tensor([[0.6, 0.4]]))
    xtc = [Case(xtc_probability=0.3, seed=seed, step=seed % 7) for seed in range(rows)]
    acted = torch.tensor([chains.crosses(params_of([c]).chains[0], c.seed, c.step) for c in xtc])
    assert abs(float(acted.double().mean()) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / rows)
    tokens = draw(logits.expand(rows, -1), params_of(xtc)).tokens
    plain = draw(logits.expand(rows, -1), params_of([replace(c, xtc_probability=0.0) for c in xtc])).tokens
    assert torch.equal(tokens, torch.where(acted, 1, plain))


def test_xtc_sees_what_the_filters_before_it_left():
    assert seen(Case(top_k=2, xtc_probability=1.0, xtc_threshold=0.42)) == {1}  # 4/7 and 3/7
    assert seen(Case(top_k=1, xtc_probability=1.0, xtc_threshold=0.1)) == {0}


@pytest.mark.parametrize("vocab", [8, 1600])
def test_with_the_temperature_last_filters_see_untempered_probabilities(vocab):
    def allowed(order: str, **options: float) -> set[int]:
        return seen(Case(4.0, filter_order=order, **options), vocab=vocab, rows=400)

    assert allowed("temperature_last", top_p=0.65) == {0, 1}
    assert allowed("temperature_first", top_p=0.65) == {0, 1, 2}
    assert allowed("temperature_last", min_p=0.6) == {0, 1}
    assert allowed("temperature_first", min_p=0.6) == {0, 1, 2, 3}
    # mlx-lm's order: XTC comes before top-k, and drops 0 and 1
    assert allowed("temperature_last", xtc_probability=1.0, xtc_threshold=0.15, top_k=1) == {2}
    assert allowed("temperature_last", xtc_probability=1.0, xtc_threshold=0.15, top_k=2) == {2, 3}
    assert allowed("temperature_first", xtc_probability=1.0, xtc_threshold=0.15, top_k=1) == {0}


def test_rows_without_rare_filters_carry_nothing():
    plain = [Case(0.8, 40, 0.9, 0.1), Case(0.0, typical_p=0.5), Case(0.9, 5, filter_order="temperature_last")]
    assert params_of(plain).chains is None
    mixed = params_of([*plain, Case(typical_p=0.5)]).chains
    assert [chain is None for chain in mixed] == [True, True, True, False]


@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.4]), st.booleans())
@settings(max_examples=100)
def test_host_and_device_forms_leave_the_same_ids(seed, xtc, last):
    case = Case(0.7, top_p=0.98, min_p=1e-4, xtc_probability=xtc, xtc_threshold=0.02, spared=(3,), seed=seed)
    case = replace(case, **({"filter_order": "temperature_last", "top_k": 9} if last else {"typical_p": 0.8}))
    logits = logits_of(("normal", "integers", "pair")[seed % 3], 400, seed)
    chain = params_of([case]).chains[0]
    scaled = logits if last else logits / np.float32(0.7)
    row = host.HostRow(logits, scaled, float(scaled.max()))
    left = chains.chain_survivors(row, chain, chains.crosses(chain, case.seed, case.step))
    assert set(left.tolist()) == kept(logits, case) == set(permitted(logits, case))


def without_spared(like: torch.Tensor, rows: tuple) -> torch.Tensor:
    return torch.zeros_like(like)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (chains, "_spared", without_spared),
        (chains, "top_choices", lambda row, ids, chain: ids[-1:]),
        (chains, "host_reach", lambda distances, units, need: 1e9),
        (host, "crosses", lambda chain, seed, step: True),
    ],
)
def test_a_wrong_filter_is_noticed(monkeypatch, module, name, value):
    cases = [
        Case(1.0, xtc_probability=0.5, xtc_threshold=0.02, spared=tuple(range(200)), typical_p=0.3, seed=seed)
        for seed in range(60)
    ]
    table = torch.from_numpy(np.stack([logits_of("normal", 1100, 10**6)] * len(cases)))
    params = params_of(cases)
    assert torch.equal(draw(table, params).tokens, draw_together(table, None, params).tokens)
    monkeypatch.setattr(module, name, value)
    assert not torch.equal(draw(table, params).tokens, draw_together(table, None, params).tokens)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"typical_p": 0.0}, "typical_p"),
        ({"typical_p": 1.1}, "typical_p"),
        ({"typical_p": 0.9, "filter_order": "temperature_last"}, "typical_p"),
        ({"xtc_probability": -0.1}, "xtc_probability"),
        ({"xtc_probability": float("nan")}, "xtc_probability"),
        ({"xtc_threshold": 1.5}, "xtc_threshold"),
        ({"filter_order": "last"}, "filter_order"),
        ({"filter_order": None}, "filter_order"),
        ({"curve": [(0.0, 0.0)]}, "curve"),
        ({"curve": [(-1.0, 0.0), (-1.0, 1.0)]}, "curve"),
        ({"curve": [(-2.0, 1.0), (-1.0, 0.0)]}, "curve"),
        ({"curve": [(-2.0, 1.0), (1.0, 2.0)]}, "curve"),
        ({"curve": [(-2.0, 1.0, 0.0), (-1.0, 2.0)]}, "curve"),
        ({"curve": "straight"}, "curve"),
        ({"curve": [(-2.0, float("inf")), (-1.0, 2.0)]}, "curve"),
        ({"hlg": {"pivot": "mode"}}, "hlg"),
        ({"hlg": {"toe": -1.0}}, "hlg"),
        ({"hlg": {"knee": 1.0}}, "hlg"),
        ({"hlg": 1.0}, "hlg"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options, field):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**options)
    assert caught.value.field == field


def test_a_request_keeps_its_own_copy_of_curve_and_hlg():
    points = [[-2.0, -3.0], [0.0, 0.0]]
    params = SamplingParams(curve=points, hlg={"pivot": "top"})
    points[0][1] = 9.0
    assert params.curve == ((-2.0, -3.0), (0.0, 0.0))
    assert params == SamplingParams(curve=((-2, -3), (0, 0)), hlg={"pivot": "top"})
    assert hash(params) == hash(SamplingParams(curve=params.curve, hlg=params.hlg))
