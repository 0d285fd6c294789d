"""Shadow probes: what comes out of comparing proposals with the draws that follow (spec 11.8 to 11.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.ports import Evidence
from paceline.engine.shadow import ShadowProbes


def probing(proposals: Sequence[int], match: int = 0) -> ShadowProbes:
    probes = ShadowProbes()
    probes.start([3], [proposals], [match])
    return probes


def test_matches_are_counted_until_a_draw_differs() -> None:
    probes = probing([5, 6, 7], match=4)
    assert probes.delivered(3, [5]) is None
    assert probes.delivered(3, [6]) is None
    assert probes.delivered(3, [9]) == Evidence(3, 3, 2, 4)
    assert not probes.outstanding


def test_all_right() -> None:
    probes = probing([5, 6])
    assert probes.delivered(3, [5]) is None
    assert probes.delivered(3, [6]) == Evidence(3, 2, 2)
    assert not probes.has(3)


def test_a_miss_at_once() -> None:
    assert probing([5, 6]).delivered(3, [1]) == Evidence(3, 2, 0)


def test_an_eos_is_a_miss() -> None:
    assert probing([5, 6]).delivered(3, [5], saw_eos=True) == Evidence(3, 2, 1)
    assert probing([5, 6]).delivered(3, [], saw_eos=True) == Evidence(3, 2, 0)


def test_a_burst_settles_at_the_first_difference_and_the_rest_is_no_evidence() -> None:
    assert probing([5, 6]).delivered(3, [5, 1, 5, 6]) == Evidence(3, 2, 1)
    assert probing([5, 6]).delivered(3, [5, 6, 1]) == Evidence(3, 2, 2)


def test_settling_early_counts_matches_and_no_miss() -> None:
    probes = ShadowProbes()
    probes.start([1, 2, 4], [[5, 6, 7], [5, 6, 7], [8]], [2, 0, 0])
    probes.delivered(1, [5, 6])
    assert probes.settle([1, 2, 9]) == [Evidence(1, 2, 2, 2)]
    assert probes.has(4) and not probes.has(1) and not probes.has(2)
    assert probes.settle() == []
    assert not probes.outstanding


def test_a_row_that_leaves_shows_nothing() -> None:
    probes = probing([5, 6])
    probes.delivered(3, [5])
    probes.drop(3)
    probes.drop(3)
    assert probes.settle() == [] and probes.delivered(3, [6]) is None


def test_one_probe_per_row_and_a_new_one_once_it_settled() -> None:
    probes = probing([5, 6])
    probes.start([3], [[1, 1]])
    assert probes.delivered(3, [5]) is None
    assert probes.delivered(3, [1]) == Evidence(3, 2, 1)
    probes.start([3], [[1]])
    assert probes.delivered(3, [1]) == Evidence(3, 1, 1)


def test_rows_without_proposals_are_left_out() -> None:
    probes = ShadowProbes()
    probes.start([1, 2], [[], [4]])
    assert not probes.has(1) and probes.has(2)


def test_proposals_that_arrive_later_meet_the_draws_that_waited() -> None:
    probes = ShadowProbes()
    probes.start([1, 2, 3], None, [7, 0, 0])
    assert probes.delivered(1, [5]) is None
    assert probes.delivered(1, [9]) is None
    assert probes.delivered(2, [5]) is None
    assert probes.arrive({1: [5, 6], 2: [5, 6], 3: [], 8: [1]}) == [Evidence(1, 2, 1, 7)]
    assert probes.delivered(2, [6]) == Evidence(2, 2, 2)
    assert not probes.has(3) and not probes.outstanding


def test_proposals_that_never_arrived_show_nothing() -> None:
    probes = ShadowProbes()
    probes.start([1])
    probes.delivered(1, [5])
    assert probes.settle() == []


def test_a_second_arrival_changes_nothing() -> None:
    probes = probing([5, 6])
    probes.delivered(3, [5])
    assert probes.arrive({3: [9]}) == []
    assert probes.delivered(3, [6]) == Evidence(3, 2, 2)


# -- invariant 28: only (k, m) or (seen, seen), at most one probe per row ----------------------------------------------

Bursts = list[tuple[list[int], bool]]
BURSTS = st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=3), st.booleans()), max_size=6)


def by_definition(proposals: list[int], bursts: Bursts) -> list[Evidence]:
    """Compare the text with the proposals, then settle."""
    text = [token for burst, eos in bursts for token in [*burst, *[None] * eos]]
    seen = 0
    for token in text:
        if token != proposals[seen]:
            return [Evidence(1, len(proposals), seen)]
        seen += 1
        if seen == len(proposals):
            return [Evidence(1, seen, seen)]
    return [Evidence(1, seen, seen)] if seen else []


def played(probes: ShadowProbes, proposals: list[int], bursts: Bursts, late: bool, arrival: int) -> list[Evidence]:
    found: list[Evidence] = []
    probes.start([1], None if late else [proposals])
    for number, (burst, eos) in enumerate(bursts):
        if late and number == arrival:
            found += probes.arrive({1: proposals})
        settled = probes.delivered(1, burst, eos)
        found += [] if settled is None else [settled]
    if late and arrival >= len(bursts):
        found += probes.arrive({1: proposals})
    return found + probes.settle()


def check_definition(make: Callable[[], ShadowProbes]) -> None:
    @settings(derandomize=True, max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, 1), min_size=1, max_size=4), BURSTS, st.booleans(), st.integers(0, 6))
    def holds(proposals: list[int], bursts: Bursts, late: bool, arrival: int) -> None:
        assert played(make(), proposals, bursts, late, arrival) == by_definition(proposals, bursts)

    holds()


def test_evidence_is_that_of_the_definition() -> None:
    check_definition(ShadowProbes)


class ForgetsEos(ShadowProbes):
    def delivered(self, index: int, emitted: Sequence[int], saw_eos: bool = False) -> Evidence | None:
        return super().delivered(index, emitted)


class ForgetsWaiting(ShadowProbes):
    def arrive(self, proposals):  # type: ignore[no-untyped-def]
        for probe in self._probes.values():
            probe.draws.clear()
        return super().arrive(proposals)


class MissesWhenSettled(ShadowProbes):
    def settle(self, indices=None):  # type: ignore[no-untyped-def]
        return [Evidence(e.index, e.drafted + 1, e.accepted) for e in super().settle(indices)]


@pytest.mark.parametrize("broken", [ForgetsEos, ForgetsWaiting, MissesWhenSettled])
def test_the_definition_sees_broken_bookkeeping(broken: type[ShadowProbes]) -> None:
    with pytest.raises(AssertionError):
        check_definition(broken)
