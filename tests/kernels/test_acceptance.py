"""The fused acceptance kernel against acceptance and advance by tensor operations: every column, every figure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields

import pytest
import torch
from tests.support.interpreter import INTERPRETED  # before any kernel

from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.pool import BlockPool
from paceline.cache.tables import RowTables
from paceline.engine.device_columns import _columns, accept_round
from paceline.kernels import acceptance
from paceline.kernels.acceptance import AcceptedRound, RoundColumns, accept_and_advance, flip_coins
from paceline.sampling import forced

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="compares with the form of the CPU, on the CPU")

ROWS, LONGEST, DEPTH = 9, 24, 3
Accept = Callable[..., AcceptedRound]


def make_case(seed: int, depth: int) -> tuple[RowTables, tuple[torch.Tensor, ...]]:
    """Tables in a random state and a round's draws: ends, budgets, dead rows, bad logits, full histories."""
    rnd = random.Random(seed)
    tables = RowTables(ROWS, LONGEST, [BlockGroupSpec("full", (LayerKV(0, 1, 1, 1),))], {"full": BlockPool(4, 4)}, None)
    for row in range(ROWS):
        tables.length[row] = rnd.choice([0, 3, 11, LONGEST - 3, LONGEST - 1])
        tables.step[row], tables.remaining[row] = rnd.randrange(9), rnd.randint(1, depth + 3)
        tables.live[row], tables.pending[row] = rnd.random() < 0.8, rnd.randrange(5)
        tables.eos_ids[row, : rnd.randint(0, 2)] = rnd.randrange(5)
        tables.history[row] = torch.randint(0, 5, (LONGEST + 1,), generator=torch.Generator().manual_seed(row))
    index = torch.tensor(rnd.sample(range(ROWS), 6))
    draws = torch.tensor([[rnd.randrange(3) for _ in range(depth + 1)] for _ in index])
    proposals = torch.where(torch.rand(6, depth) < 0.7, draws[:, :depth], 1)
    lengths = torch.tensor([rnd.randint(0, depth) for _ in index])
    bad = torch.tensor([[rnd.random() < 0.1 for _ in range(depth + 1)] for _ in index])
    return tables, (index, draws, proposals, lengths, bad)


def check_accept(accept: Accept, seed: int, depth: int = DEPTH) -> None:
    torch.manual_seed(seed)
    tables, case = make_case(seed, depth)
    torch.manual_seed(seed)
    mine, _ = make_case(seed, depth)
    expected = accept_round(tables, *case)
    got = accept(_columns(mine), *case)
    for field in fields(AcceptedRound):
        assert torch.equal(getattr(got, field.name), getattr(expected, field.name)), field.name
    for field in fields(RoundColumns):
        ours, theirs = getattr(mine, field.name), getattr(tables, field.name)
        if field.name == "history":  # the last column takes writes that nobody keeps
            ours, theirs = ours[:, :-1], theirs[:, :-1]
        assert torch.equal(ours, theirs), field.name


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_columns_and_figures_are_those_of_the_tensor_form(seed, depth):
    check_accept(accept_and_advance, seed, depth)


def _changed(place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Accept:
    def accept(columns: RoundColumns, *case: torch.Tensor) -> AcceptedRound:
        given = list(case)
        given[place] = change(given[place])
        return accept_and_advance(columns, *given)

    return accept


def _no_ends(columns: RoundColumns, *case: torch.Tensor) -> AcceptedRound:
    hidden = RoundColumns(**{**vars(columns), "eos_ids": torch.full_like(columns.eos_ids, -1)})
    return accept_and_advance(hidden, *case)


BROKEN: dict[str, Accept] = {
    "lengths are not looked at": _changed(3, lambda lengths: torch.full_like(lengths, DEPTH)),
    "bad logits are not looked at": _changed(4, torch.zeros_like),
    "rows are mixed up": _changed(0, lambda index: index.flip(0)),
    "ends are not looked at": _no_ends,
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_acceptance_is_noticed(name):
    def check() -> None:
        for seed in range(6):
            check_accept(BROKEN[name], seed)

    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("rate", [0.0, 0.35, 1.0])
def test_coins_fall_as_those_of_the_tensor_form(rate):
    torch.manual_seed(3)
    rows, depth = 40, 4
    draws, proposals = torch.randint(0, 3, (rows, depth + 1)), torch.randint(0, 3, (rows, depth))
    lengths, seed = torch.randint(0, depth + 1, (rows,)), torch.randint(-(2**62), 2**62, (rows,))
    key = (seed, torch.randint(0, 2**31, (rows,)))
    coin = forced.CoinAcceptance(rate, "cpu")
    expected = coin.apply(draws, proposals, lengths, key)
    got = flip_coins(draws, proposals, lengths, key, coin._rate, forced.COIN)
    assert torch.equal(got, expected)
    if 0 < rate < 1:
        other = flip_coins(draws, proposals, lengths, key, coin._rate, forced.COIN + 1)
        assert not torch.equal(other, expected), "coins of another domain fall otherwise"


def test_launches_need_no_memory_that_depends_on_values():
    tables, case = make_case(1, DEPTH)
    shapes: Sequence[torch.Size] = [
        getattr(accept_and_advance(_columns(tables), *case), field.name).shape for field in fields(AcceptedRound)
    ]
    assert shapes == [*[torch.Size([6])] * 5, torch.Size([6, 5 + DEPTH + DEPTH + 1])]
    assert acceptance.power_above(5) == 8 and acceptance.power_above(1) == 1
