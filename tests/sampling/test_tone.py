"""Maps in place of the temperature: the curve goes through its points and keeps the order, HLG bends only its ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.kit import Case, hermite, params_of, permitted
from tests.sampling.test_draw import logits_of

from paceline.core.params import HlgSettings
from paceline.sampling import tone as tones
from paceline.sampling.draw import draw
from paceline.sampling.tone import Bend, bend_of, curve_of, tone_scores

LIFTED = ((-9.0, -20.0), (-5.0, -4.0), (-1.0, -4.0), (-0.1, -3.5))


@st.composite
def control_points(draw_one):
    steps = draw_one(
        st.lists(st.tuples(st.floats(0.01, 10), st.just(0.0) | st.floats(1e-3, 20)), min_size=1, max_size=6)
    )
    x, y = -draw_one(st.floats(0, 3)), draw_one(st.floats(-5, 5))
    points = [(x, y)]
    for dx, dy in steps:
        x, y = x - dx, y - dy
        points.append((x, y))
    return tuple(reversed(points))


def values(points, inputs):
    return curve_of(points).apply(np.asarray(inputs, np.float64), 1.0, np)


@given(control_points())
@settings(max_examples=200)
def test_a_curve_is_the_monotone_cubic_of_its_points(points):
    xs = np.sort(np.concatenate([np.linspace(points[0][0] - 5, 0, 300), [x for x, _ in points]]))
    ys = values(points, xs)
    assert np.allclose(ys, [hermite(points, x) for x in xs], rtol=1e-9, atol=1e-8)
    assert np.allclose(values(points, [x for x, _ in points]), [y for _, y in points], rtol=1e-9, atol=1e-8)
    assert (np.diff(ys) >= -1e-9).all()
    below = values(points, points[0][0] - np.array([1.0, 2.0, 0.0]))
    assert below[0] - below[1] >= 1 - 1e-9  # the tail falls at least as fast as the log-probability
    assert below[2] - below[0] >= 1 - 1e-9


def test_a_plain_mean_of_secants_is_noticed(monkeypatch):
    """Without the cut of Fritsch and Carlson the curve overshoots where a flat interval follows a steep one."""

    def means_only(x, y):
        secants = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(zip(x, y, strict=True))]
        return [secants[0], *((a + b) / 2 for a, b in itertools.pairwise(secants)), secants[-1]]

    monkeypatch.setattr(tones, "_slopes", means_only)
    xs = np.linspace(-9, 0, 500)
    assert (np.diff(curve_of.__wrapped__(LIFTED).apply(xs, 1.0, np)) < -1e-6).any()


def test_the_identity_curve_is_plain_sampling_at_temperature_one():
    table = torch.from_numpy(np.stack([logits_of("normal", 1200, i) for i in range(100)]))
    cases = [Case(1.0, seed=i) for i in range(100)]
    curved = [replace(c, temperature=3.0, top_k=1, curve=((-30.0, -30.0), (0.0, 0.0))) for c in cases]
    assert torch.equal(draw(table, params_of(curved)).tokens, draw(table, params_of(cases)).tokens)


def test_a_curve_can_make_the_likeliest_ids_equal():
    flat_top = ((-8.0, -9.0), (-3.0, -1.0), (0.0, -1.0))
    logits = np.log(np.array([0.6, 0.2, 0.1, 0.06, 0.0399, 0.0001]))
    scores = list(permitted(logits, Case(curve=flat_top)).values())
    assert scores[:4] == pytest.approx([-1.0] * 4)
    assert scores[5] < -9


BENDS = [Bend(pivot, k, toe, shoulder) for pivot in ("top", "entropy") for k in (0.0, 1.5) for toe, shoulder in
         ((0.7, 0.4), (0.0, 2.0), (3.0, 0.0))]  # fmt: skip


@pytest.mark.parametrize("bend", BENDS, ids=str)
def test_hlg_is_straight_inside_and_bends_at_both_ends(bend):
    xs = np.linspace(-20, 20, 4001)
    ys = bend.apply(xs, 2.0, np)
    slopes = np.diff(ys) / np.diff(xs) * 2.0  # in units of the gain 1 / T
    inside = np.abs(xs) <= bend.linear
    assert np.allclose(ys[inside], xs[inside] / 2.0)
    assert (slopes > 0).all()
    assert np.abs(np.diff(slopes)).max() < 0.04  # no kink
    below, above = slopes[xs[1:] < -bend.linear - 1], slopes[xs[:-1] > bend.linear + 1]
    assert (below > 1.5).all() if bend.toe else np.allclose(below, 1)
    assert (above < 0.75).all() if bend.shoulder else np.allclose(above, 1)


@given(
    st.sampled_from([*BENDS, curve_of(LIFTED), curve_of(((-20.0, -20.0), (0.0, 0.0)))]),
    st.floats(-5, 15),
    st.floats(0.1, 40),
    st.sampled_from([0.2, 1.0, 5.0]),
)
@settings(max_examples=200)
def test_nothing_in_reach_is_left_out(tone, top, distance, temperature):
    least = tone.least_input(top, distance, temperature)
    below = tone.apply(np.array([least - 1e-9, top]), temperature, np)
    assert (
        below[1] - below[0] >= distance - 1e-6
        or tone.apply(np.array([least]), temperature, np)[0] < below[1] - distance
    )


@pytest.mark.parametrize("vocab", [60, 1500])
def test_hlg_that_does_not_roll_off_is_the_plain_temperature(vocab):
    assert bend_of(HlgSettings(toe=0.0, shoulder=0.0)) is None
    table = torch.from_numpy(np.stack([logits_of("normal", vocab, i) for i in range(50)]))
    cases = [Case(0.7, seed=i) for i in range(50)]
    off = [replace(c, top_k=2, top_p=0.5, hlg=("entropy", 1.0, 0.0, 0.0)) for c in cases]
    assert torch.equal(draw(table, params_of(off)).tokens, draw(table, params_of(cases)).tokens)


@pytest.mark.parametrize("vocab", [60, 1500])
@pytest.mark.parametrize("rare", [{"hlg": ("top", 0.0, 1.0, 9.0)}, {"curve": LIFTED}, {"xtc_probability": 1.0}])
def test_a_greedy_row_is_greedy_whatever_else_is_set(vocab, rare):
    table = torch.from_numpy(np.stack([logits_of("pair", vocab, i) for i in range(20)]))
    mixed = params_of([Case(1e-5, **rare)] * 19 + [Case(1.0, **rare)])
    assert draw(table, mixed).tokens[:19].tolist() == table[:19].argmax(-1).tolist()


@pytest.mark.parametrize(("pivot", "origin"), [("top", np.log(0.5)), ("median", np.log(0.5)), ("entropy", None)])
def test_the_pivot_stays_in_place(pivot, origin):
    p = np.array([0.5, 0.3, 0.15, 0.05])
    origin = (p * np.log(p)).sum() if origin is None else origin
    scores = tone_scores(Bend(pivot, 50.0, 1.0, 1.0), torch.from_numpy(np.log(p) + 7.0)[None], torch.tensor([[2.0]]))
    assert np.allclose(scores[0].numpy(), (np.log(p) - origin) / 2.0, atol=1e-7)


def test_the_median_is_that_of_the_probability():
    p = np.array([0.3, 0.15, 0.25, 0.2, 0.1])  # 0.3 + 0.25 reach a half
    scores = tone_scores(Bend("median", 50.0, 1.0, 1.0), torch.from_numpy(np.log(p))[None], torch.ones(1, 1))
    assert np.allclose(scores[0].numpy(), np.log(p / 0.25), atol=1e-7)
