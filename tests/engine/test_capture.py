"""Rounds as graphs through the whole engine: recorded functions in place of a device, tokens as without them."""

from __future__ import annotations

from paceline.engine.capture import FLAVORS, GREEDY, largest_batch, round_shapes
from paceline.engine.device_round import RoundShape


def test_a_host_drafter_needs_every_width_up_to_its_depth() -> None:
    shapes = round_shapes(3, on_device=False, fill_span=0, flavors=(GREEDY,))
    assert shapes == [RoundShape(0, given, GREEDY) for given in (0, 1, 2, 3)]


def test_a_device_drafter_needs_every_depth_and_spans_beside_it() -> None:
    shapes = round_shapes(2, on_device=True, fill_span=32, flavors=(GREEDY,))
    assert shapes == [
        *(RoundShape(depth, 0, GREEDY) for depth in (0, 1, 2)),
        *(RoundShape(0, span, GREEDY) for span in (8, 16, 32)),
    ]
    assert len(round_shapes(2, True, 32)) == len(FLAVORS) * len(shapes)


def test_long_spans_are_for_rows_that_are_alone() -> None:
    assert largest_batch(RoundShape(0, 32, GREEDY), 4) == 1
    assert largest_batch(RoundShape(0, 8, GREEDY), 4) > 64
    assert largest_batch(RoundShape(0, 12, GREEDY), 12) > 64
