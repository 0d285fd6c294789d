"""Acceptance by coin: as often as asked, keyed, and only where something was proposed."""

from __future__ import annotations

import pytest
import torch

from paceline.sampling.accept import accept_window
from paceline.sampling.forced import CoinAcceptance, expected_length, rate_for

ROWS, DEPTH = 4000, 4


def _round(forced: CoinAcceptance, lengths: torch.Tensor, step: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws of a round in which every draw equals its proposal, and the accepted counts [ROWS]."""
    proposals = torch.arange(ROWS * DEPTH).view(ROWS, DEPTH) % 97
    draws = torch.cat([proposals, torch.full((ROWS, 1), 5)], 1)
    key = (torch.arange(ROWS), torch.full((ROWS,), step))
    drawn = forced.apply(draws, proposals, lengths, key)
    accepted = accept_window(
        draws=drawn,
        proposals=proposals,
        lengths=lengths,
        eos_ids=torch.full((ROWS, 8), -1),
        remaining=torch.full((ROWS,), 100),
        live=torch.ones(ROWS, dtype=torch.bool),
        bad=torch.zeros(ROWS, DEPTH + 1, dtype=torch.bool),
    )
    return drawn, accepted.accepted


@pytest.mark.parametrize("length", [1.0, 2.0, 3.0, 5.0])
def test_the_mean_acceptance_length_is_the_one_asked_for(length: float) -> None:
    forced = CoinAcceptance(rate_for(length, DEPTH), "cpu")
    _, accepted = _round(forced, torch.full((ROWS,), DEPTH))
    assert abs(1 + accepted.double().mean().item() - length) < 0.06


def test_the_rate_solves_its_equation() -> None:
    assert expected_length(rate_for(3.0, 4), 4) == pytest.approx(3.0)
    assert expected_length(0.5, 2) == 1.75


def test_the_rate_may_change_between_rounds() -> None:
    forced = CoinAcceptance(0.0, "cpu")
    lengths = torch.full((ROWS,), DEPTH)
    assert _round(forced, lengths)[1].max() == 0
    forced.set_rate(1.0)
    assert forced.rate == 1.0
    assert _round(forced, lengths)[1].min() == DEPTH


def test_coins_are_those_of_the_row_and_step() -> None:
    forced = CoinAcceptance(0.5, "cpu")
    lengths = torch.full((ROWS,), DEPTH)
    first, again, other = _round(forced, lengths)[1], _round(forced, lengths)[1], _round(forced, lengths, step=10)[1]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_past_the_proposals_stay() -> None:
    forced = CoinAcceptance(1.0, "cpu")
    drawn, _ = _round(forced, torch.full((ROWS,), 2))
    plain, _ = _round(CoinAcceptance(1.0, "cpu"), torch.zeros(ROWS, dtype=torch.int64))
    assert torch.equal(drawn[:, 2:], plain[:, 2:])
    assert forced.apply(drawn[:, :1], drawn[:, :0], torch.zeros(ROWS), (drawn[:, 0], drawn[:, 0])).shape == (ROWS, 1)
