"""Sampling parameters are checked when they are made; every refusal names its field (case S19)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.core.request import AbortSignal, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2.0),
        ("seed", -1),
        ("seed", 2**64),
        ("num_draft_tokens", -1),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["x"]),
        ("ignore_eos", 1),
        ("speculative", "no"),
    ],
)
def test_s19_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_s19_off_values_and_edges_are_taken() -> None:
    for params in ({"top_k": 0}, {"top_k": -1}, {"top_k": 10**7}, {"top_p": 1}, {"min_p": 1}, {"seed": 2**64 - 1}):
        SamplingParams(**params)


def test_s17_an_unknown_field_is_not_dropped() -> None:
    with pytest.raises(TypeError, match="mirostat"):
        SamplingParams(mirostat=2)  # type: ignore[call-arg]


def test_s05_greedy_has_one_definition() -> None:
    assert [SamplingParams(temperature=t).greedy for t in (0, 1e-8, 1e-6, 1e-5, 1e-4)] == [True] * 4 + [False]


def test_stop_strings_come_in_one_form() -> None:
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop_strings == ("x", "y")
    assert SamplingParams().stop_strings == ()


def test_the_first_abort_reason_is_kept() -> None:
    signal = AbortSignal()
    assert not signal.aborted
    signal.abort("first")
    signal.abort("second")
    assert (signal.aborted, signal.reason) == (True, "first")
