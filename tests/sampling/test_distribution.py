"""Distributions: what speculation emits follows the target exactly (case S04), and shared noise makes drafts match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tests.sampling.kit import Case, check_distribution, params_of, probabilities

from paceline.sampling import noise
from paceline.sampling.accept import accept_window
from paceline.sampling.draw import draw
from paceline.sampling.params import DrawParams

#: The toy target: eight tokens with constant logits. Its mode is token 0; token 5 has a probability of a tenth.
TARGET = np.log(np.array([0.30, 0.20, 0.15, 0.12, 0.08, 0.10, 0.03, 0.02])).astype(np.float32)
#: Drafters: one puts nine tenths on token 5, one never proposes the target's favourites.
PEAKED = np.log(np.array([0.02, 0.02, 0.01, 0.01, 0.01, 0.90, 0.02, 0.01])).astype(np.float32)
DISJOINT = np.log(np.array([1e-9, 1e-9, 1e-9, 0.1, 0.2, 0.2, 0.3, 0.2])).astype(np.float32)
LENGTH = 4

Sampler = Callable[[torch.Tensor, DrawParams], torch.Tensor]


def keyed(case: Case, rows: int, first_seed: int = 0, coupling: str = "gumbel") -> DrawParams:
    """Parameters of ``rows`` requests that differ in their seed only."""
    one = params_of([case], coupling)
    columns = {name: getattr(one, name).expand(rows) for name in ("temperature", "top_k", "top_p", "min_p", "step")}
    chains = one.chains and one.chains * rows
    return replace(one, seed=torch.arange(first_seed, first_seed + rows), chains=chains, **columns)


def sample(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
    return draw(logits, params).tokens


def sample_all(logits: np.ndarray, params: DrawParams, sampler: Sampler = sample) -> torch.Tensor:
    """One draw per row of ``params`` from the same ``logits``."""
    return sampler(torch.from_numpy(logits).expand(len(params.seed), -1), params)


def speculate(
    case: Case, drafter: np.ndarray, depth: int, rows: int, sampler: Sampler = sample, coupling: str = "gumbel"
) -> np.ndarray:
    """Decode ``rows`` requests that differ in their seed by rounds of ``depth`` proposals: tokens [rows, LENGTH]."""
    tokens = torch.full((rows, LENGTH + depth + 1), -1)
    step = torch.zeros(rows, dtype=torch.int64)
    place = torch.arange(depth + 1)
    params = keyed(case, rows, coupling=coupling)
    while int(step.min()) < LENGTH:
        params = replace(params, step=step)
        proposals = sample_all(drafter, params.window(depth)).reshape(rows, depth)
        draws = sample_all(TARGET, params.window(depth + 1), sampler).reshape(rows, depth + 1)
        live = step < LENGTH
        accepted = accept_window(
            draws,
            proposals,
            torch.full((rows,), depth),
            torch.full((rows, 1), -1),
            (LENGTH - step).clamp(min=1),
            live,
            torch.zeros_like(draws, dtype=torch.bool),
        )
        kept = place < accepted.emitted.unsqueeze(1)
        row, column = kept.nonzero(as_tuple=True)
        tokens[row, step[row] + column] = draws[kept]
        step = step + accepted.emitted
    return tokens[:, :LENGTH].numpy()


def check_tokens(case: Case, tokens: np.ndarray) -> None:
    exact = probabilities(TARGET, case)
    for place in range(tokens.shape[1]):
        check_distribution(tokens[:, place], exact)


def check_pair(case: Case, tokens: np.ndarray) -> None:
    exact = probabilities(TARGET, case)
    check_distribution(tokens[:, 0] * len(exact) + tokens[:, 1], np.outer(exact, exact).reshape(-1))


GRID = [
    (Case(temperature, top_k, top_p), depth)
    for temperature, top_k, top_p, depth in product((0.5, 1.0, 1.5), (0, 3), (1.0, 0.8), (1, 4))
]


@pytest.mark.parametrize(
    ("case", "depth"), GRID, ids=[f"T{c.temperature}-k{c.top_k}-p{c.top_p}-depth{d}" for c, d in GRID]
)
def test_emitted_tokens_follow_the_target(case, depth):
    drafter = PEAKED if depth == 4 else DISJOINT
    check_tokens(case, speculate(case, drafter, depth, 20_000))


RARE = [
    Case(1.0, typical_p=0.6),
    Case(1.0, xtc_probability=0.5, xtc_threshold=0.11, spared=(1,)),
    Case(2.0, top_p=0.9, xtc_probability=0.3, xtc_threshold=0.15, filter_order="temperature_last"),
    Case(curve=((-4.0, -9.0), (-2.0, -2.5), (-1.0, -2.0), (0.0, -1.8))),
    Case(0.8, hlg=("entropy", 0.3, 1.0, 2.0)),
]


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
@pytest.mark.parametrize("case", RARE, ids=["typical", "xtc", "xtc-last", "curve", "hlg"])
def test_emitted_tokens_follow_the_target_through_rarer_filters(case, coupling):
    tokens = speculate(case, PEAKED, 3, 20_000, coupling=coupling)
    check_tokens(case, tokens)
    if coupling == "gumbel":
        with pytest.raises(AssertionError):
            check_tokens(Case(case.temperature), tokens)  # the filter matters


@pytest.mark.parametrize("case", [Case(1.0), Case(0.5, 3, 0.8), Case(1.5, min_p=0.1)], ids=str)
def test_emitted_tokens_follow_the_target_by_inverse_cdf(case):
    tokens = speculate(case, DISJOINT, 4, 20_000, coupling="inverse_cdf")
    check_tokens(case, tokens)


def test_emitted_pairs_follow_the_target_by_inverse_cdf():
    case = Case(1.0)
    check_pair(case, speculate(case, PEAKED, 1, 100_000, coupling="inverse_cdf"))


def test_an_inverse_cdf_that_forgets_the_step_is_noticed():
    def stuck(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
        return sample(logits, replace(params, step=torch.zeros_like(params.step)))

    tokens = speculate(Case(1.0), PEAKED, 1, 20_000, stuck, coupling="inverse_cdf")
    with pytest.raises(AssertionError):
        check_pair(Case(1.0), tokens)


@pytest.mark.parametrize("vocab", [8, 1032])
def test_an_inverse_cdf_draw_is_the_first_id_whose_sum_exceeds_the_uniform_number(vocab):
    """Ids without mass are never chosen, and the choice rises with the number."""
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, [2, 3, 5, vocab - 2]] = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    params = keyed(Case(1.0), 500, coupling="inverse_cdf")
    chance = noise.uniform(params.seed, params.step, noise.INVERSE_CDF)
    edges = torch.tensor([0.1, 0.3, 0.6, 1.0], dtype=torch.float64)
    ids = torch.tensor([2, 3, 5, vocab - 2])
    expected = ids[torch.searchsorted(edges, chance, right=True)]
    assert torch.equal(sample(logits.expand(500, -1), params), expected)


@pytest.mark.parametrize(("drafter", "depth"), [(PEAKED, 1), (DISJOINT, 4)], ids=["peaked", "disjoint"])
def test_emitted_pairs_follow_the_target(drafter, depth):
    case = Case(1.0)
    tokens = speculate(case, drafter, depth, 100_000)
    check_tokens(case, tokens)
    check_pair(case, tokens)


def ratio_test_with_greedy_draft(rows: int) -> np.ndarray:
    """A deliberately wrong acceptor: the draft is always the drafter's argmax, the ratio uses its softmax."""
    rng = np.random.default_rng(0)
    p, q = probabilities(TARGET, Case(1.0)), probabilities(PEAKED, Case(1.0))
    residual = np.maximum(p - q, 0)
    rejected = rng.random(rows) >= min(1.0, p[q.argmax()] / q.max())
    tokens = np.full(rows, q.argmax())
    tokens[rejected] = rng.choice(len(p), rejected.sum(), p=residual / residual.sum())
    return tokens[:, None]


def test_a_greedy_draft_in_a_ratio_test_is_noticed():
    with pytest.raises(AssertionError):
        check_tokens(Case(1.0), ratio_test_with_greedy_draft(20_000))


def test_shared_noise_in_a_ratio_test_is_noticed():
    """Accepting by min(1, p/q) a draft that was drawn with the target's own noise, else taking the target's draw."""
    rows = 20_000
    drafted = sample_all(PEAKED, keyed(Case(1.0), rows)).numpy()
    own = sample_all(TARGET, keyed(Case(1.0), rows)).numpy()
    p, q = probabilities(TARGET, Case(1.0)), probabilities(PEAKED, Case(1.0))
    kept = np.random.default_rng(0).random(rows) < np.minimum(1, p / q)[drafted]
    with pytest.raises(AssertionError):
        check_tokens(Case(1.0), np.where(kept, drafted, own)[:, None])


def test_a_sampler_that_forgets_the_step_is_noticed():
    """Each token alone still looks right: only the pair shows that all steps share their noise."""

    def stuck(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
        return sample(logits, replace(params, step=torch.zeros_like(params.step)))

    tokens = speculate(Case(1.0), PEAKED, 1, 20_000, stuck)
    check_tokens(Case(1.0), tokens)
    with pytest.raises(AssertionError):
        check_pair(Case(1.0), tokens)


@pytest.mark.parametrize("forgotten", ["temperature", "top_k", "top_p"])
def test_a_sampler_that_forgets_a_parameter_is_noticed(forgotten):
    case = Case(0.5, 3, 0.8)
    plain = Case(**{**vars(case), forgotten: getattr(Case(), forgotten)})
    with pytest.raises(AssertionError):
        check_tokens(case, speculate(plain, PEAKED, 1, 20_000))


WIDE = [
    Case(1.0),
    Case(0.7, top_p=0.9),
    Case(1.2, top_k=40),
    Case(1.0, min_p=0.05),
    Case(1.0, typical_p=0.5),
    Case(1.0, hlg=("median", 1.0, 0.5, 0.5)),
]


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
@pytest.mark.parametrize("case", WIDE, ids=["plain", "top-p", "top-k", "min-p", "typical", "hlg"])
def test_wide_rows_follow_the_exact_softmax(case, coupling):
    """Rows wide enough for the way that skips ids; probabilities that differ by orders of magnitude."""
    vocab, rows = 1030, 4000
    logits = (np.random.default_rng(4).normal(size=vocab) * 2.5).astype(np.float32)
    tokens = sample_all(logits, keyed(case, rows, coupling=coupling)).numpy()
    check_distribution(tokens, probabilities(logits, case), largest_variation=0.15)


def match_rates(spread: float, coupling: str = "gumbel", **options: float) -> tuple[float, float]:
    """How often drafts equal the target's draw over random pairs: with the same noise, and with other noise."""
    vocab, rows = 64, 3000
    rng = np.random.default_rng(7)
    target = torch.from_numpy((rng.normal(size=(rows, vocab)) * 2).astype(np.float32))
    draft = target + torch.from_numpy((rng.normal(size=(rows, vocab)) * spread).astype(np.float32))
    case = Case(1.0, **options)
    shared, other = keyed(case, rows, coupling=coupling), keyed(case, rows, 10**6, coupling)
    tokens = sample(target, shared)
    coupled = (sample(draft, shared) == tokens).double().mean()
    independent = (sample(draft, other) == tokens).double().mean()
    return float(coupled), float(independent)


@pytest.mark.parametrize("options", [{}, {"typical_p": 0.8}, {"xtc_probability": 0.5}], ids=["plain", "typical", "xtc"])
@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_coupled_drafts_match_more_often_than_independent_ones(spread, coupling, options):
    coupled, independent = match_rates(spread, coupling, **options)
    assert coupled > independent + 0.1


def test_far_drafts_still_match_more_often_by_gumbel():
    coupled, independent = match_rates(1.0)
    assert coupled > independent + 0.15


def test_inverse_cdf_match_rate_is_the_exact_one():
    """P(match) is the length of u for which both sums pass it at the same id: intervals that overlap."""
    rows = 20_000
    keys = keyed(Case(1.0), rows, coupling="inverse_cdf")
    tokens = [sample_all(logits, keys) for logits in (TARGET, PEAKED)]
    sums = [np.concatenate([[0.0], np.cumsum(probabilities(x, Case(1.0)))]) for x in (TARGET, PEAKED)]
    low, high = np.maximum(sums[0][:-1], sums[1][:-1]), np.minimum(sums[0][1:], sums[1][1:])
    exact = np.maximum(high - low, 0).sum()
    assert abs(float((tokens[0] == tokens[1]).double().mean()) - exact) < 4 * np.sqrt(exact * (1 - exact) / rows)


def test_coupled_match_rate_is_the_exact_one():
    """P(match) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2408.07978)."""
    rows = 20_000
    tokens = [sample_all(logits, keyed(Case(1.0), rows)) for logits in (TARGET, PEAKED)]
    p, q = probabilities(TARGET, Case(1.0)), probabilities(PEAKED, Case(1.0))
    exact = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(len(p)))
    assert abs(float((tokens[0] == tokens[1]).double().mean()) - exact) < 4 * np.sqrt(exact * (1 - exact) / rows)
