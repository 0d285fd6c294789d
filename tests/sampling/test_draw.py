"""Draws: one definition for all ways of drawing, rows that do not see each other, ties, filters, broken rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.kit import Case, params_of, plain_draw

from paceline.sampling import draw as drawing
from paceline.sampling import host
from paceline.sampling.draw import draw, draw_subset, draw_together

Draw = Callable[..., torch.Tensor]

COMMON = {
    "temperature": st.sampled_from([0.0, 1e-5, 1e-4, 0.05, 0.8, 1.0, 1.5, 30.0]),
    "top_k": st.sampled_from([-1, 0, 1, 2, 3, 50, 2000, 10**7]),
    "top_p": st.sampled_from([1e-6, 0.3, 0.5, 0.8, 0.95, 0.999, 1.0]),
    "min_p": st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    "seed": st.integers(0, 2**64 - 1),
    "step": st.integers(0, 2**20),
}
#: Each is off as often as on.
RARE = {
    "typical_p": st.sampled_from([1.0, 1.0, 1.0, 1e-6, 0.2, 0.7, 0.95]),
    "xtc_probability": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    "xtc_threshold": st.sampled_from([0.0, 1e-4, 0.05, 0.1, 0.3, 0.6]),
    "spared": st.sampled_from([(), (0,), (1, 5, 10**6)]),
    "filter_order": st.sampled_from(["temperature_first", "temperature_last"]),
    "curve": st.sampled_from(
        [None] * 5 + [((-20.0, -20.0), (0.0, 0.0)), ((-9.0, -30.0), (-5.0, -4.0), (-1.0, -4.0), (-0.1, -3.5))]
    ),
    "hlg": st.sampled_from(
        [None] * 4
        + [("top", 2.0, 0.5, 0.0), ("entropy", 1.0, 0.5, 0.5), ("median", 0.0, 0.0, 3.0), ("entropy", 1.0, 0.0, 0.0)]
    ),
}


def allowed_together(case: Case) -> Case:
    return replace(case, typical_p=1.0) if case.filter_order == "temperature_last" else case


CASES = st.builds(Case, **COMMON) | st.builds(Case, **COMMON, **RARE).map(allowed_together)
COUPLINGS = st.sampled_from(["gumbel", "inverse_cdf"])
SHAPES = ("normal", "flat", "integers", "steep", "pair", "banned", "huge")


def logits_of(shape: str, count: int, seed: int, dtype: type = np.float32) -> np.ndarray:
    """``count`` logits of one row: smooth, all equal, full of ties, one or two dominant, mostly -inf, near overflow."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=count) * 3
    if shape == "flat":
        values[:] = 1.25
    elif shape == "integers":
        values = rng.integers(-2, 3, size=count).astype(float)
    elif shape == "steep":
        values[rng.integers(count)] += 60
    elif shape == "pair":
        values[:2] += (20.0, 20.5)
    elif shape == "banned":
        values[rng.random(count) < 0.9] = -np.inf
        values[rng.integers(count)] = 0.5
    elif shape == "huge":
        values *= 1e37
    return values.astype(dtype)


def together(logits: torch.Tensor, cases: list[Case], coupling: str = "gumbel") -> torch.Tensor:
    return draw_together(logits, None, params_of(cases, coupling)).tokens


ROWS = st.lists(st.tuples(CASES, st.sampled_from(SHAPES)), min_size=1, max_size=5)


@given(ROWS, st.integers(2, 40), st.booleans(), COUPLINGS)
@settings(max_examples=400)
def test_mixed_rows_get_the_token_of_the_definition(rows, vocab, double, coupling):
    cases = [case for case, _ in rows]
    table = [logits_of(shape, vocab, i, np.float64 if double else np.float32) for i, (_, shape) in enumerate(rows)]
    draws = draw(torch.from_numpy(np.stack(table)), params_of(cases, coupling))
    assert draws.tokens.tolist() == [plain_draw(row, case, coupling) for row, case in zip(table, cases, strict=True)]
    assert not draws.bad.any()


def check_skipping(vocab: int, shape: str, case: Case, dtype: type = np.float32, coupling: str = "gumbel") -> None:
    """A wide row, drawn with a look only at ids that can win, against the full computation."""
    logits = torch.from_numpy(logits_of(shape, vocab, case.step, dtype)[None])
    assert vocab >= drawing.WIDE
    params = params_of([case], coupling)
    assert draw(logits, params).tokens.tolist() == together(logits, [case], coupling).tolist()


@given(st.integers(1024, 2100), st.sampled_from(SHAPES), CASES, st.sampled_from([np.float32, np.float64]), COUPLINGS)
@settings(max_examples=800)
def test_skipping_ids_that_cannot_win_changes_nothing(vocab, shape, case, dtype, coupling):
    check_skipping(vocab, shape, case, dtype, coupling)


def uniform_instead(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


@pytest.mark.parametrize(("name", "value"), [("MOST_GUMBEL", 1.0), ("host_exponential", uniform_instead)])
def test_skipping_ids_that_can_win_is_noticed(monkeypatch, name, value):
    monkeypatch.setattr(host, name, value)

    def many() -> None:
        for step in range(300):
            check_skipping(1024, ("normal", "pair")[step % 2], Case(step=step))

    with pytest.raises(AssertionError):
        many()


@pytest.mark.parametrize(
    ("name", "case", "coupling"),
    [
        ("_OUT_OF_REACH", Case(1.5, hlg=("top", 2.0, 0.5, 0.0)), "gumbel"),
        ("_OUT_OF_REACH", Case(curve=((-9.0, -4.0), (0.0, -1.0))), "gumbel"),
        ("NEGLIGIBLE", Case(1.5), "inverse_cdf"),
    ],
)
def test_leaving_out_ids_that_count_is_noticed(monkeypatch, name, case, coupling):
    monkeypatch.setattr(host, name, 1.0)

    def many() -> None:
        for step in range(100):
            check_skipping(1024, "normal", replace(case, step=step), coupling=coupling)

    with pytest.raises(AssertionError):
        many()


def test_wide_rows_get_the_token_of_the_definition():
    cases = [
        Case(0.8, seed=3),
        Case(0.8, top_p=0.95, seed=4),
        Case(1.0, top_k=50, seed=5),
        Case(0.7, 40, 0.9, 0.02, seed=6, step=9),
        Case(1.3, top_p=0.99, seed=7),
        Case(0.0, seed=8),
        Case(1e-3, seed=9),
        Case(0.9, typical_p=0.4, seed=10),
        Case(1.1, xtc_probability=1.0, xtc_threshold=0.01, spared=(7,), seed=11),
        Case(2.0, 30, 0.9, 0.01, 12, xtc_probability=1.0, xtc_threshold=0.02, filter_order="temperature_last"),
        Case(seed=13, curve=((-9.0, -12.0), (-4.0, -3.0), (-1.0, -2.5))),
        Case(1.2, seed=14, hlg=("median", 1.0, 0.3, 0.8)),
        Case(1.2, seed=15, min_p=0.01, typical_p=0.9, hlg=("entropy", 0.5, 0.3, 0.8)),
    ]
    table = np.stack([logits_of("normal", 1501, i) for i in range(len(cases))])
    for coupling in ("gumbel", "inverse_cdf"):
        expected = [plain_draw(row, case, coupling) for row, case in zip(table, cases, strict=True)]
        assert draw(torch.from_numpy(table), params_of(cases, coupling)).tokens.tolist() == expected


@given(
    st.lists(CASES, min_size=2, max_size=5), st.sampled_from([30, 1100]), st.randoms(use_true_random=False), COUPLINGS
)
@settings(max_examples=100)
def test_a_row_does_not_see_its_neighbours(cases, vocab, shuffler, coupling):
    table = torch.from_numpy(np.stack([logits_of("normal", vocab, c.step) for c in cases]))
    alone = [int(draw(table[i : i + 1], params_of([case], coupling)).tokens) for i, case in enumerate(cases)]
    order = list(range(len(cases)))
    shuffler.shuffle(order)
    shuffled = draw(table[order], params_of([cases[i] for i in order], coupling)).tokens
    assert shuffled.tolist() == [alone[i] for i in order]


WALKED = [
    Case(0.9, seed=11, step=4),
    Case(0.0, seed=12, step=0),
    Case(1.2, top_p=0.9, seed=2**63 + 5, step=100),
    Case(1.1, typical_p=0.6, xtc_probability=0.5, seed=13, step=7),
    Case(1.3, top_p=0.9, xtc_probability=0.6, xtc_threshold=0.02, filter_order="temperature_last", seed=14),
    Case(0.8, hlg=("entropy", 1.0, 0.5, 0.5), seed=15, step=2),
]


def check_walk(draw_window: Draw, coupling: str = "gumbel") -> None:
    """A window drawn at once, position by position and one row at a time: always the same tokens."""
    width = 4
    table = torch.from_numpy(np.stack([logits_of("normal", 50, i) for i in range(len(WALKED) * width)]))
    window = draw_window(table, params_of(WALKED, coupling), width).reshape(len(WALKED), width)
    for i, case in enumerate(WALKED):
        for j in range(width):
            at = replace(case, step=case.step + j)
            single = draw(table[i * width + j][None], params_of([at], coupling)).tokens
            assert int(single) == int(window[i, j])


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_window_single_and_walked_draws_agree(coupling):
    check_walk(lambda logits, params, width: draw(logits, params.window(width)).tokens, coupling)


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_a_window_drawn_at_one_step_is_noticed(coupling):
    def one_step(logits, params, width):
        window = params.window(width)
        return draw(logits, type(window)(**{**vars(window), "step": params.step.repeat_interleave(width)})).tokens

    with pytest.raises(AssertionError):
        check_walk(one_step, coupling)


@pytest.mark.parametrize("vocab", [8, 4096])
@pytest.mark.parametrize(
    "case", [Case(0.0), Case(1e-5), Case(0.0, top_p=0.5), Case(1.0, top_k=1), Case(0.7, top_p=1e-9)]
)
def test_greedy_and_its_equivalents_take_the_lowest_of_equal_ids(vocab, case):
    logits = torch.zeros(2, vocab)
    logits[0, [3, 5, vocab - 1]] = 7.0
    mixed = params_of([case, Case(1.0, seed=1)])
    assert int(draw(logits, mixed).tokens[0]) == 3
    assert int(draw(logits[:1], params_of([case])).tokens) == 3
    assert int(together(logits[:1], [case])) == 3


@pytest.mark.parametrize("vocab", [12, 2000])
@pytest.mark.parametrize(("top_k", "allowed"), [(1, {2}), (2, {2, 4}), (3, {2, 4, 6}), (4, {2, 4, 6, 0})])
def test_equal_logits_at_the_edge_of_top_k_stay_by_lowest_id(vocab, top_k, allowed):
    logits = torch.full((1, vocab), -4.0)
    logits[0, [2, 4, 6]] = 5.0
    logits[0, [0, 8, 9]] = 4.0
    cases = [Case(50.0, top_k=top_k, seed=seed) for seed in range(200)]
    tokens = draw(logits.expand(200, -1), params_of(cases)).tokens
    assert set(tokens.tolist()) == allowed


@pytest.mark.parametrize("vocab", [8, 1024])
@pytest.mark.parametrize(("top_p", "allowed"), [(0.25, {0}), (0.2500001, {0, 1}), (0.5, {0, 1}), (0.75, {0, 1, 2})])
def test_top_p_keeps_the_shortest_prefix_that_reaches_it(vocab, top_p, allowed):
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, :4] = 1.0
    cases = [Case(1.0, top_p=top_p, seed=seed) for seed in range(100)]
    assert set(draw(logits.expand(100, -1), params_of(cases)).tokens.tolist()) == allowed


@pytest.mark.parametrize("vocab", [8, 1024])
def test_top_p_applies_to_what_top_k_leaves_and_min_p_to_the_largest(vocab):
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, :4] = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))

    def allowed(**filters: float) -> set[int]:
        cases = [Case(1.0, seed=seed, **filters) for seed in range(150)]
        return set(draw(logits.expand(150, -1), params_of(cases)).tokens.tolist())

    assert allowed(top_p=0.55) == {0, 1}
    assert allowed(top_k=2, top_p=0.55) == {0}  # of the two that are left the first holds 4/7
    assert allowed(min_p=0.45) == {0, 1, 2}
    assert allowed(top_p=0.55, min_p=0.8) == {0}


@pytest.mark.parametrize("vocab", [16, 1600])
@pytest.mark.parametrize("case", [Case(0.0), Case(0.9, seed=1), Case(0.9, top_p=0.9, seed=1)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_row_is_marked_and_leaves_the_others_alone(vocab, case, value):
    table = torch.from_numpy(np.stack([logits_of("normal", vocab, i) for i in range(4)]))
    cases = [Case(0.9, seed=5), case, case, Case(0.0)]
    sound = draw(table, params_of(cases)).tokens
    table[1, 7] = value
    table[2] = -torch.inf
    for draws in (draw(table, params_of(cases)), draw_together(table, None, params_of(cases))):
        assert draws.bad.tolist() == [False, True, True, False]
        assert draws.tokens.tolist() == [int(sound[0]), 0, 0, int(sound[3])]


@pytest.mark.parametrize("vocab", [16, 1600])
def test_banned_ids_are_never_drawn_and_do_not_make_a_row_bad(vocab):
    table = torch.full((300, vocab), -torch.inf)
    table[:, [3, 9]] = torch.tensor([0.0, 1.0])
    cases = [Case(2.0, seed=seed, top_k=(0, 5)[seed % 2]) for seed in range(300)]
    draws = draw(table, params_of(cases))
    assert set(draws.tokens.tolist()) == {3, 9}
    assert not draws.bad.any()


def test_half_precision_logits_are_drawn_as_float32():
    table = torch.from_numpy(logits_of("normal", 64, 0)[None]).to(torch.bfloat16)
    case = [Case(0.8, seed=4)]
    assert torch.equal(draw(table, params_of(case)).tokens, draw(table.float(), params_of(case)).tokens)


def on_subset(case: Case) -> Case:
    """What a draw among listed ids uses: rows that no subset reproduces draw with their temperature alone."""
    if case.temperature > 1e-5 and (case.curve or (case.hlg and any(case.hlg[2:])) or case.xtc_probability > 0):
        return Case(case.temperature, seed=case.seed, step=case.step)
    return case


def check_subset(subset: Draw, vocab: int, case: Case, seed: int, coupling: str = "gumbel") -> None:
    """A draw among listed ids is the full draw with all other ids banned."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, vocab + 1))
    ids = torch.from_numpy(np.sort(rng.choice(vocab, size, replace=False)))
    logits = torch.from_numpy(np.stack([logits_of("normal", vocab, seed), logits_of("integers", vocab, seed + 1)]))
    masked = torch.full_like(logits, -torch.inf)
    masked[:, ids] = logits[:, ids]
    cases = [case, Case(0.9, seed=seed)]
    tokens = subset(logits[:, ids], ids, params_of(cases, coupling))
    assert torch.isin(tokens, ids).all()
    assert tokens.tolist() == draw(masked, params_of([on_subset(c) for c in cases], coupling)).tokens.tolist()


@given(CASES, st.sampled_from([9, 60, 2500]), st.integers(0, 1000), COUPLINGS)
@settings(max_examples=300)
def test_a_subset_draw_is_the_full_draw_with_other_ids_banned(case, vocab, seed, coupling):
    check_subset(draw_subset, vocab, case, seed, coupling)


def test_a_subset_draw_with_noise_by_place_is_noticed():
    def by_place(logits, ids, params):
        return ids[draw(logits, params).tokens]

    def many() -> None:
        for seed in range(20):
            check_subset(by_place, 60, Case(1.0, seed=seed), seed)

    with pytest.raises(AssertionError):
        many()


def test_a_bad_row_of_a_subset_gets_a_listed_id():
    ids = torch.tensor([4, 9])
    tokens = draw_subset(torch.full((2, 2), torch.nan), ids, params_of([Case(0.0), Case(1.0)]))
    assert torch.isin(tokens, ids).all()
