"""Acceptance of whole windows: equal to the one-draw-at-a-time form, blind to padding and to other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paceline.core.acceptance import Acceptance
from paceline.sampling.accept import Accepted, accept_window

Accept = Callable[..., Accepted]


@dataclass(frozen=True)
class Row:
    """One row's window: ``draws`` and ``bad`` have one entry more than ``proposals``."""

    draws: list[int]
    proposals: list[int]
    bad: list[bool]
    eos_ids: list[int]
    remaining: int
    live: bool


@st.composite
def rows(draw: st.DrawFn) -> Row:
    depth = draw(st.integers(0, 6))
    token = st.integers(0, 3)  # few tokens, so that proposals match and EOS ids turn up
    flaw = st.sampled_from([False] * 9 + [True])
    return Row(
        draws=draw(st.lists(token, min_size=depth + 1, max_size=depth + 1)),
        proposals=draw(st.lists(token, min_size=depth, max_size=depth)),
        bad=draw(st.lists(flaw, min_size=depth + 1, max_size=depth + 1)),
        eos_ids=draw(st.lists(token, max_size=2)),
        remaining=draw(st.integers(1, 8)),
        live=draw(st.sampled_from([True, True, True, False])),
    )


def accept_rows(accept: Accept, batch: list[Row], *, extra: int = 0, filler: int = 0) -> list[tuple[int | bool, ...]]:
    """Results per row; windows are padded to the widest plus ``extra`` with ``filler`` and flaws."""
    width = max(len(row.draws) for row in batch) + extra
    eos_width = max(len(row.eos_ids) for row in batch) + 1

    def table(lists: list[list[int]], size: int, fill: int) -> torch.Tensor:
        return torch.tensor([values + [fill] * (size - len(values)) for values in lists]).reshape(len(lists), size)

    result = accept(
        table([row.draws for row in batch], width, filler),
        table([row.proposals for row in batch], width - 1, filler).to(torch.int32),
        torch.tensor([len(row.proposals) for row in batch], dtype=torch.int32),
        table([row.eos_ids for row in batch], eos_width, -1),
        torch.tensor([row.remaining for row in batch]),
        torch.tensor([row.live for row in batch]),
        table([[int(b) for b in row.bad] for row in batch], width, 1).bool(),
    )
    return list(zip(*(part.tolist() for part in result), strict=True))


def walk(row: Row) -> tuple[tuple[int | bool, ...], Acceptance | None]:
    """What the host form makes of the row: one draw at a time, stopping at a bad one."""
    nothing = (0, 0, False, False, False)
    if not row.live:
        return nothing, None
    host = Acceptance(row.proposals, row.remaining, frozenset(row.eos_ids))
    while not host.done:
        if row.bad[host.position]:
            return (*nothing[:4], True), None
        host.accept(row.draws[host.position])
    ended = host.saw_eos or len(host.emitted) == row.remaining
    return (len(host.emitted), host.accepted, host.saw_eos, ended, False), host


def check_equal(accept: Accept, batch: list[Row]) -> None:
    """Invariant 7: the two forms agree, and the algebra of spec 8.3 holds."""
    for row, result in zip(batch, accept_rows(accept, batch), strict=True):
        expected, host = walk(row)
        assert result == expected
        if host is None:
            continue
        emitted, accepted, saw_eos, _, _ = result
        assert 0 <= accepted <= min(len(row.proposals), emitted)
        assert row.draws[:accepted] == row.proposals[:accepted]
        assert emitted - accepted in (0, 1)
        assert host.position == emitted + saw_eos
        assert not set(row.draws[:emitted]) & set(row.eos_ids)
        assert (host.correction is not None) == (emitted > accepted)
        if not row.proposals:
            assert host.position == 1


@given(st.lists(rows(), min_size=1, max_size=6))
@settings(max_examples=600)
def test_device_and_host_forms_agree(batch):
    check_equal(accept_window, batch)


def check_padding(accept: Accept, batch: list[Row], extra: int, filler: int) -> None:
    """Invariant 6: what fills the table, and how wide it is, changes no row."""
    alone = [accept_rows(accept, [row])[0] for row in batch]
    assert accept_rows(accept, batch, extra=extra, filler=filler) == alone


@given(st.lists(rows(), min_size=1, max_size=6), st.integers(0, 3), st.integers(-1, 3))
@settings(max_examples=300)
def test_padding_is_neutral(batch, extra, filler):
    check_padding(accept_window, batch, extra, filler)


def accepts_eos(draws, proposals, lengths, eos_ids, remaining, live, bad):
    """Counts a matched EOS as an ordinary token."""
    return accept_window(draws, proposals, lengths, torch.full_like(eos_ids, -1), remaining, live, bad)


def ignores_lengths(draws, proposals, lengths, eos_ids, remaining, live, bad):
    """Compares padding as if it had been proposed."""
    full = torch.full_like(lengths, proposals.shape[1])
    return accept_window(draws, proposals, full, eos_ids, remaining, live, bad)


def ignores_budget(draws, proposals, lengths, eos_ids, remaining, live, bad):
    return accept_window(draws, proposals, lengths, eos_ids, remaining + 100, live, bad)


def any_flaw(draws, proposals, lengths, eos_ids, remaining, live, bad):
    """Fails a row for logits past its end."""
    return accept_window(draws, proposals, lengths, eos_ids, remaining, live, bad.any(1, keepdim=True).expand_as(bad))


def keeps_flaws(draws, proposals, lengths, eos_ids, remaining, live, bad):
    return accept_window(draws, proposals, lengths, eos_ids, remaining, live, torch.zeros_like(bad))


WRONG = [accepts_eos, ignores_lengths, ignores_budget, any_flaw, keeps_flaws]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_acceptors_are_noticed(wrong):
    search = settings(max_examples=300, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError):
        search(given(st.lists(rows(), min_size=1, max_size=6))(lambda batch: check_equal(wrong, batch)))()


def test_an_acceptor_that_reads_padding_is_noticed():
    row = Row([1, 2], [1], [False, False], [], 8, True)
    longer = Row([1, 2, 3, 1], [1, 2, 3], [False] * 4, [], 8, True)
    with pytest.raises(AssertionError):
        check_padding(ignores_lengths, [row, longer], 1, 2)


def test_one_example_by_hand():
    """Rows: all match and bonus, first miss, EOS after a match, budget ends, dead, broken in use, broken later."""
    draws = torch.tensor([[5, 6, 7], [5, 9, 7], [5, 2, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7], [4, 6, 7]])
    bad = torch.zeros(7, 3, dtype=torch.bool)
    bad[5, 1] = bad[6, 1] = True
    result = accept_window(
        draws,
        torch.tensor([[5, 6]] * 7),
        torch.full((7,), 2),
        torch.tensor([[2, -1]] * 7),
        torch.tensor([9, 9, 9, 2, 9, 9, 9]),
        torch.tensor([True, True, True, True, False, True, True]),
        bad,
    )
    assert result.emitted.tolist() == [3, 2, 1, 2, 0, 0, 1]
    assert result.accepted.tolist() == [2, 1, 1, 2, 0, 0, 0]
    assert result.saw_eos.tolist() == [False, False, True, False, False, False, False]
    assert result.ended.tolist() == [False, False, True, True, False, False, False]
    assert result.bad.tolist() == [False, False, False, False, False, True, False]
