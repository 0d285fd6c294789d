"""Evidence: where proposals are filed, how counts fade, what a start is worth, and drift."""

from __future__ import annotations

import pytest

from paceline.core.ports import Evidence
from paceline.gate.evidence import Counters, EvidenceSettings, Slots, tally

SETTINGS = EvidenceSettings(fast=0.5, slow=0.9, matches=(1, 3, 5), match_priors=(0.2, 0.5, 0.9))
SLOTS = Slots(3, SETTINGS)


def fresh(**more: object) -> Counters:
    return Counters(SLOTS, SETTINGS, **more)  # type: ignore[arg-type]


def test_places_and_matches_have_slots_of_their_own() -> None:
    assert SLOTS.of(0) == (0, 1, 2)
    assert SLOTS.of(1) == (3, 3, 4)  # a match of 1, then of 2, then of 3 tokens
    assert SLOTS.of(4) == (4, 5, 5)
    assert SLOTS.of(99) == (5, 5, 5)
    assert SLOTS.count == 6


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (Evidence(0, 3, 1), {0: (1, 0), 1: (0, 1)}),
        (Evidence(0, 3, 3), {0: (1, 0), 1: (1, 0), 2: (1, 0)}),
        (Evidence(0, 1, 1), {0: (1, 0)}),
        (Evidence(0, 2, 0), {0: (0, 1)}),
        (Evidence(0, 0, 0), {}),
        (Evidence(0, 3, 2, match=1), {3: (2, 0), 4: (0, 1)}),
        (Evidence(0, 9, 8), {0: (1, 0), 1: (1, 0), 2: (1, 0)}),  # deeper than the gate looks
    ],
)
def test_an_entry_tells_of_what_was_tested(entry: Evidence, found: dict) -> None:
    assert tally(entry, SLOTS) == found


def test_rates_are_the_mean_over_both_decays() -> None:
    counters = fresh()
    assert counters.rates[:3] == [0.6] * 3
    counters.add({0: (1.0, 0.0)})
    fast = (3 * 0.5 + 1) / (5 * 0.5 + 1)
    slow = (3 * 0.9 + 1) / (5 * 0.9 + 1)
    assert counters.rates[0] == pytest.approx((fast + slow) / 2)


def test_a_place_never_observed_takes_the_rate_before_it() -> None:
    counters = fresh()
    counters.add({0: (0.0, 1.0)})
    assert counters.rates[1] == counters.rates[2] == counters.rates[0] < 0.6
    counters.add({0: (1.0, 0.0), 1: (0.0, 1.0)})
    assert counters.rates[2] == counters.rates[1] != counters.rates[0]
    assert counters.rates[3:] == [0.2, 0.5, 0.9]


def test_a_start_takes_the_rates_over_but_not_the_weight() -> None:
    settings = EvidenceSettings()
    group = Counters(SLOTS, settings)
    for _ in range(50):
        group.add({0: (1.0, 0.0)})
    joined = Counters(SLOTS, settings, group)
    assert joined.rates == group.rates
    joined.add({0: (0.0, 1.0)})
    group.add({0: (0.0, 1.0)})
    assert joined.rates[0] < group.rates[0]
    assert joined.rates[1] == joined.rates[0]


def test_what_is_not_observed_drifts_towards_the_group() -> None:
    group, row = fresh(), fresh()
    group.add({0: (20.0, 0.0)})
    row.add({0: (0.0, 20.0)})
    row.catch_up([0], group.rates, 1)
    own = row.chances(0, 1, group.rates, 2)[0]
    assert own == row.rates[0]
    later = [row.chances(0, 1, group.rates, now)[0] for now in (3, 30, 1000)]
    assert own < later[0] < later[1] < later[2] == pytest.approx(group.rates[0], rel=1e-3)
    row.catch_up([0], group.rates, 1000)
    row.add({0: (0.0, 1.0)})
    assert own < row.rates[0] < group.rates[0]


def test_chances_are_products() -> None:
    counters = fresh()
    assert counters.chances(0, 3, counters.rates, 0) == pytest.approx([0.6, 0.36, 0.216])
    assert counters.chances(4, 2, counters.rates, 0) == pytest.approx([0.5, 0.45])
    assert counters.chances(0, 0, counters.rates, 0) == []


def test_places_of_the_group_that_are_not_reached_drift_towards_the_one_before() -> None:
    group = fresh()
    group.catch_up([0, 1], group.rates, 1)
    group.add({0: (30.0, 0.0), 1: (0.0, 30.0)})
    assert group.drifted(2)[:2] == group.rates[:2]
    group.catch_up([0], group.rates, 1000)
    first, second, third = group.drifted(1001)[:3]
    assert (
        first == group.rates[0] and second == pytest.approx(first, rel=1e-3) and third == pytest.approx(first, rel=1e-3)
    )
    assert group.drifted(1001)[3:] == group.rates[3:]


def test_a_start_may_weigh_less() -> None:
    light, usual = fresh(weight=1.0), fresh()
    for each in (light, usual):
        each.add({0: (0.0, 1.0)})
    assert light.rates[0] < usual.rates[0]
