"""Figures over a measurement with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench.kit import TEXT, measurement, run, spec

from paceline.bench.figures import ArmFigures, Figures, batch_figures, classes_of
from paceline.bench.workloads import COPY_HEAVY, FREE


def _arm(name: str, kind: str = COPY_HEAVY) -> ArmFigures:
    return next(arm for arm in Figures(measurement()).by_class(kind) if arm.arm == name)


def test_rates_separate_the_first_token_from_the_others() -> None:
    arm = _arm("plain float32")
    assert arm.decode_tokens_per_second == pytest.approx(20 / 5.0)
    assert arm.tokens_per_second == pytest.approx(21 / 6.0)
    assert arm.time_to_first_token_ms == pytest.approx(1000.0)


def test_speedups_are_against_plain_and_the_best_peers() -> None:
    arm = _arm("drafting float32")
    ratios = {base: bound.value for base, bound in arm.against.items()}
    assert ratios == pytest.approx(
        {"plain float32": 2.0, "transformers float32": 4.0, "transformers lookup float32": 2.5}
    )
    assert arm.end_to_end is not None
    # seconds of the whole call: (5, 7) against (3, 4)
    assert arm.end_to_end.value == pytest.approx(((5 / 3) * (7 / 4)) ** 0.5)
    assert _arm("plain float32").end_to_end is None


def test_classes_are_apart_and_prompts_left_out_are_not_counted() -> None:
    found = classes_of(Figures(measurement()))
    assert {kind: arms[0].prompts for kind, arms in found.items()} == {COPY_HEAVY: 2, FREE: 1}
    assert _arm("drafting float32", FREE).against["plain float32"].value == pytest.approx(1.0)


def test_acceptance_is_totalled_over_prompts() -> None:
    acceptance = _arm("drafting float32").acceptance
    assert acceptance is not None
    assert acceptance.mean_acceptance_length == pytest.approx(1 + 20 / 8)
    assert acceptance.draft_acceptance_rate == pytest.approx(20 / 24)
    assert acceptance.tokens_per_forward == pytest.approx(40 / 20)
    assert acceptance.by_position == pytest.approx([1.0, 0.75, 0.75])
    assert _arm("transformers float32").acceptance is None


def test_a_prompt_with_other_tokens_gives_no_speed() -> None:
    found = measurement()
    found.runs["drafting float32", 0] = [run(0.1, (*TEXT[:-1], 7)), run(0.1)]
    figures = Figures(found)
    arm = next(arm for arm in figures.by_class(COPY_HEAVY) if arm.arm == "drafting float32")
    assert (arm.same_tokens, arm.prompts) == (1, 2)
    assert arm.against["plain float32"].prompts == 1
    assert arm.against["plain float32"].value == pytest.approx(2.0)
    assert not figures.all_equal()
    assert Figures(measurement()).all_equal()


def test_a_missing_token_at_the_end_is_not_equal() -> None:
    found = measurement()
    found.runs["drafting float32", 0] = [run(0.1), replace(run(0.1), count=len(TEXT) + 1)]
    assert not Figures(found).same_tokens("drafting float32", 0)


def test_a_drafter_that_remembers_prompts_is_not_steady() -> None:
    found = measurement()
    first, second = (run(2.0, figures=spec(lengths, 3)) for lengths in ([1, 1, 1, 1], [3, 3]))
    found.runs["drafting float32", 1] = [first, second]
    steady = {arm.arm: arm.steady for arm in Figures(found).by_class(COPY_HEAVY)}
    assert steady == {
        "plain float32": True,
        "drafting float32": False,
        "transformers float32": True,
        "transformers lookup float32": True,
    }


def test_batches_compare_together_with_alone() -> None:
    (entry,) = batch_figures(measurement())
    assert entry["speedup"]["value"] == pytest.approx((4.0 * 3.0) ** 0.5)
    assert entry["together_tokens_per_second"] == pytest.approx(80 / 5.0)
    assert entry["same_tokens"]
    found = measurement()
    found.batches[0] = replace(found.batches[0], equal=False)
    assert not batch_figures(found)[0]["same_tokens"]
    assert not Figures(found).all_equal()
