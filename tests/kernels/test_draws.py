"""The sampler's kernels against drawing all rows together by tensor operations: the same tokens, the same bad rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch

from paceline.kernels import draws, filtered
from paceline.kernels.draws import DrawColumns, DrawPlace
from paceline.kernels.triton import noise
from paceline.sampling.draw import draw_together
from paceline.sampling.params import DrawParams

#: The interpreter computes with what is not a number as NumPy does, aloud.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("temperature", "top_k", "top_p", "min_p", "seed", "step")
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
Draw = Callable[[torch.Tensor, DrawParams, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]


def params_of(temperature: torch.Tensor, seed: int = 0, **filters: object) -> DrawParams:
    rows = len(temperature)
    columns = {name: torch.as_tensor(filters.get(name, off)).expand(rows).contiguous() for name, off in OFF.items()}
    generator = torch.Generator().manual_seed(seed)
    return DrawParams(
        temperature=temperature.float(),
        top_k=columns["top_k"].long(),
        top_p=columns["top_p"].float(),
        min_p=columns["min_p"].float(),
        seed=torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        step=torch.randint(0, 2**32, (rows,), generator=generator),
        any_filter=bool(filters),
    )


def columns_of(params: DrawParams) -> DrawColumns:
    return DrawColumns(**{name: getattr(params, name).to(DEVICE) for name in NAMES})


def by_kernels(logits: torch.Tensor, params: DrawParams, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    ids = None if ids is None else ids.to(DEVICE)
    return draws.draw_rows(
        logits.to(DEVICE), columns_of(params), ids, greedy=params.all_greedy, filtered=params.any_filter
    )


def check_draws(draw: Draw, logits: torch.Tensor, params: DrawParams, ids: torch.Tensor | None = None) -> None:
    columns = {name: getattr(params, name).to(DEVICE) for name in NAMES}
    places_of = None if ids is None else ids.to(DEVICE)
    expected = draw_together(logits.to(DEVICE), places_of, replace(params, **columns))
    tokens, bad = draw(logits, params, ids)
    places = expected.tokens if places_of is None else places_of[expected.tokens]
    assert tokens.tolist() == places.tolist()
    assert bad.tolist() == expected.bad.tolist()


def rows_of_all_kinds(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [10, count] with ties, bans and what is not finite, and their temperatures."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(10, count, generator=generator) * 3
    logits[1, count // 2], logits[2, count - 1] = float("nan"), float("inf")
    logits[3], logits[4] = float("-inf"), 1.0
    logits[5, ::2] = float("-inf")
    logits[6] = (logits[6] * 2).round() / 2
    return logits, torch.tensor([0, 1, 1, 1, 1, 0.7, 0, 1e-3, 2.0, 0.1])


@pytest.mark.parametrize("count", [3, 40, 1500])
def test_plain_draws(count):
    logits, temperature = rows_of_all_kinds(count)
    check_draws(by_kernels, logits, params_of(temperature))
    ids = torch.arange(count) * 3 + 1
    check_draws(by_kernels, logits, params_of(temperature, seed=2), ids)
    greedy = params_of(torch.zeros(10))
    check_draws(by_kernels, logits, replace(greedy, all_greedy=True, any_filter=False))


@pytest.mark.parametrize("capacity", [filtered.CAPACITY, 4])
@pytest.mark.parametrize("listed", [False, True])
def test_filtered_draws(listed, capacity, monkeypatch):
    monkeypatch.setattr(filtered.draw_filtered, "__defaults__", (capacity,))
    logits, temperature = rows_of_all_kinds(60, seed=4)
    top_k = torch.tensor([5, 3, 3, 3, 7, 0, 1, 30, 20, 100])
    top_p = torch.tensor([0.9, 0.5, 0.5, 0.5, 1.0, 0.6, 0.3, 0.999, 0.7, 0.95])
    min_p = torch.tensor([0.0, 0, 0, 0, 0.5, 0, 0.9, 0, 0.02, 0.1])
    ids = torch.arange(60) * 2 if listed else None
    check_draws(by_kernels, logits, params_of(temperature, top_k=top_k, top_p=top_p, min_p=min_p), ids)


def flat_case(seed: int) -> tuple[torch.Tensor, DrawParams]:
    """Nearly equal probabilities, so that many draws reach the edge of what the filters leave; some with ties there."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(4, 16, generator=generator) * 0.2).repeat_interleave(4, 0)
    logits[4:12] = (logits[4:12] * 8).round() / 8
    top_k = torch.tensor([0, 7, 10, 0]).repeat_interleave(4)
    top_p = torch.tensor([0.5, 1.0, 0.6, 0.3]).repeat_interleave(4)
    return logits, params_of(torch.ones(16), seed, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize("seed", range(2))
def test_draws_at_the_edge_of_the_filters(seed):
    check_draws(by_kernels, *flat_case(seed))


def _with(**changed: Callable[[torch.Tensor], torch.Tensor]) -> Draw:
    def draw(logits, params, ids):  # type: ignore[no-untyped-def]
        wrong = {name: change(getattr(params, name)) for name, change in changed.items()}
        return by_kernels(logits, replace(params, **wrong), ids)

    return draw


BROKEN: dict[str, Draw] = {
    "one id more by top-k": _with(top_k=lambda k: k + (k > 0).long()),
    "more mass by top-p": _with(top_p=lambda p: torch.where(p < 1, p + 0.05, p)),
    "less mass by top-p": _with(top_p=lambda p: torch.where(p < 1, p - 0.05, p)),
    "noise of the next step": _with(step=lambda step: step + 1),
    "ties to the highest id": lambda logits, params, ids: _mirrored(logits, params),
}


def _mirrored(logits: torch.Tensor, params: DrawParams) -> tuple[torch.Tensor, torch.Tensor]:
    count = logits.shape[1]
    ids = torch.arange(count)
    nudged = logits + ids * 1e-7
    return by_kernels(nudged, params, None)


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_draws_are_noticed(name):
    def check() -> None:
        for seed in range(2):
            check_draws(BROKEN[name], *flat_case(seed))

    with pytest.raises(AssertionError):
        check()


def test_windows_of_indexed_rows_are_the_same_rows_one_by_one():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(8))
    params = params_of(
        torch.tensor([0.0, 0.8, 1.0]), top_k=torch.tensor([0, 6, 0]), top_p=torch.tensor([1.0, 1.0, 0.7])
    )
    index, logits = torch.tensor([2, 1], device=DEVICE), logits.to(DEVICE)
    columns = replace(columns_of(params), place=DrawPlace(index, width=3, offset=4))
    for filters in (False, True):
        tokens, _ = draws.draw_rows(logits, columns, None, greedy=False, filtered=filters)
        for row in range(6):
            alone = replace(columns, place=DrawPlace(index[row // 3 :][:1], 1, 4 + row % 3))
            token, _ = draws.draw_rows(logits[row : row + 1], alone, None, greedy=False, filtered=filters)
            assert token.tolist() == tokens[row : row + 1].tolist()


def test_how_a_row_is_split_changes_nothing(monkeypatch):
    logits, temperature = rows_of_all_kinds(2500, seed=1)
    logits, temperature = logits[[0, 5, 8]], temperature[[0, 5, 8]]
    params = params_of(temperature, top_p=torch.tensor(0.8))
    expected = by_kernels(logits, params, None)
    monkeypatch.setattr(draws, "PROGRAMS", 3)
    assert draws.split(3, 2500) == (1, 3 * draws.TILE)
    assert by_kernels(logits, params, None)[0].tolist() == expected[0].tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="thousands of rows take minutes in the interpreter")
def test_chi_square_of_kernel_draws():
    """Counts of keyed draws against the exact distribution; 5 degrees of freedom, p about 1e-5 at 30."""
    probabilities = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    count = 40000
    tokens, _ = by_kernels(probabilities.log().expand(count, -1), params_of(torch.ones(count)), None)
    observed, expected = torch.bincount(tokens.cpu(), minlength=6).float(), probabilities * count
    assert float(((observed - expected) ** 2 / expected).sum()) < 30


def test_rough_noise_is_within_the_margin():
    words = torch.randint(0, 2**32, (4096,), generator=torch.Generator().manual_seed(5))
    words[:4] = torch.tensor([0, 1, 2**32 - 1, 2**28])
    words = words.to(DEVICE)
    rough, exact = torch.empty(4096, device=DEVICE), torch.empty(4096, device=DEVICE)
    _noise_kernel[(1,)](words, rough, exact, SIZE=4096)
    from paceline.sampling.noise import gumbel

    assert torch.equal(exact, gumbel(words))
    assert float((rough - exact).abs().max()) < 2e-5


import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def _noise_kernel(words, rough, exact, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    word = tl.load(words + place).to(tl.uint32)
    tl.store(rough + place, noise.rough_gumbel(word))
    tl.store(exact + place, noise.exact_gumbel(word))
