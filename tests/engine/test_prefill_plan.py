"""Prefill plans: the worked table of spec 4.10 and invariant 24 over all small spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.prefill_plan import PrefillSpan
from paceline.engine.state import PrefillStep


def span_of(
    length: int, *, kept: bool, tail_split: bool, checkpoint_at: int | None, cached: int, chunk: int
) -> PrefillSpan:
    span = PrefillSpan.of_prompt(length, chunk, tail_split=tail_split, cached=cached)
    return span.kept(length, checkpoint_at) if kept else span


@pytest.mark.parametrize(
    ("length", "kept", "tail_split", "checkpoint_at", "cached", "steps"),
    [
        (10, True, False, None, 0, ["0-4", "4-8", "8-9 save", "9-10 final"]),
        (10, True, True, None, 0, ["0-4", "4-8", "8-9 final save"]),
        (10, False, False, None, 0, ["0-4", "4-8", "8-10 final"]),
        (10, True, False, 6, 0, ["0-4", "4-6 save", "6-10 final"]),
        (10, True, False, 6, 7, ["7-10 final"]),
        (10, True, True, None, 9, ["9-9 final"]),
        (1, True, False, None, 0, ["0-1 final"]),
    ],
)
def test_worked_examples(
    length: int, kept: bool, tail_split: bool, checkpoint_at: int | None, cached: int, steps: list[str]
) -> None:
    span = span_of(length, kept=kept, tail_split=tail_split, checkpoint_at=checkpoint_at, cached=cached, chunk=4)
    assert [shown(step) for step in span.steps()] == steps


def shown(step: PrefillStep) -> str:
    return f"{step.start}-{step.end}" + " final" * step.final + " save" * step.saves


def violations(span: PrefillSpan, steps: list[PrefillStep]) -> list[str]:
    """What a list of steps breaks of invariant 24."""
    broken = []
    edges = [span.cached, *(step.end for step in steps)]
    if [step.start for step in steps] != edges[:-1] or edges[-1] != span.end:
        broken.append("partition")
    if any(step.end - step.start > span.chunk for step in steps):
        broken.append("chunk")
    saves = [step for step in steps if step.saves]
    if len(saves) > 1 or any(step.end != span.boundary for step in saves):
        broken.append("saves")
    if span.cached < span.boundary <= span.end and not saves:
        broken.append("boundary missed")
    if [step.final for step in steps] != [False] * (len(steps) - 1) + [True]:
        broken.append("final")
    return broken


spans = st.builds(
    lambda length, kept, tail, at, cached, chunk: span_of(
        length,
        kept=kept,
        tail_split=tail,
        checkpoint_at=None if at is None else min(at, length),
        cached=min(cached, length - 1),
        chunk=chunk,
    ),
    length=st.integers(1, 40),
    kept=st.booleans(),
    tail=st.booleans(),
    at=st.none() | st.integers(1, 40),
    cached=st.integers(0, 39),
    chunk=st.integers(1, 12),
)


@given(spans)
def test_invariant_24_steps_partition_the_prompt(span: PrefillSpan) -> None:
    assert violations(span, list(span.steps())) == []


def test_invariant_24_catches_a_plan_that_runs_past_the_boundary() -> None:
    class IgnoresBoundary(PrefillSpan):
        def step_at(self, position: int) -> PrefillStep:
            end = min(position + self.chunk, self.end)
            return PrefillStep(position, end, final=end == self.end)

    span = IgnoresBoundary(0, 10, 4, 6)
    assert "boundary missed" in violations(span, list(span.steps()))
