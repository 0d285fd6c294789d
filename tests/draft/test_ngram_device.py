"""Prompt lookup on the device: from the history column it proposes exactly what the host's lookup proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draft.kit import VIEW, NoPort
from tests.support.interpreter import INTERPRETED  # before any kernel

from paceline.draft.kinds._ngram_rows import DeviceLookupRows
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.kernels import lookup
from paceline.kernels.lookup import LookupRule, Texts
from paceline.kernels.triton import lookup as device_lookup
from paceline.testing.conformance import Coverage, check_provider

COLUMNS = 48
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
LookUp = Callable[[Texts, LookupRule, torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def texts_of(texts: Sequence[Sequence[int]], rubbish: int = 1) -> Texts:
    """Row r holds ``texts[r]``; behind it stands ``rubbish``, which no lookup may read."""
    history = torch.full((len(texts), COLUMNS), rubbish, dtype=torch.int32)
    for row, text in enumerate(texts):
        history[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
    return Texts(history, torch.tensor([len(text) - 1 for text in texts]))


def host_proposals(rule: LookupRule, text: Sequence[int], depth: int) -> list[int]:
    drafter = NgramDrafter(rule.window_max, rule.window_min, latest=rule.latest, eos_ids=rule.eos_ids)
    return list(drafter.propose(drafter.new_state(()), list(text), depth)) if depth else []


def check_look_up(look_up: LookUp, rule: LookupRule, texts: Sequence[Sequence[int]], depths: Sequence[int]) -> None:
    """Rows are asked for in reverse, so that places in the batch are not row numbers."""
    index = torch.arange(len(texts)).flip(0)
    tokens, lengths = look_up(texts_of(texts), rule, index, torch.tensor(depths).flip(0), max(depths))
    for row, found, length in zip(index.tolist(), tokens.tolist(), lengths.tolist(), strict=True):
        assert found[:length] == host_proposals(rule, texts[row], depths[row])


@st.composite
def rules(draw: st.DrawFn) -> LookupRule:
    most = draw(st.integers(1, 5))
    return LookupRule(most, draw(st.integers(1, most)), draw(st.booleans()), draw(st.sampled_from([(), (0,), (0, 2)])))


@given(rules(), st.lists(st.tuples(TEXTS, st.integers(0, 6)), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_rows_propose_what_the_host_proposes(rule, rows):
    check_look_up(lookup.look_up, rule, [text for text, _ in rows], [depth for _, depth in rows])


in_interpreter = pytest.mark.skipif(not INTERPRETED, reason="runs a kernel on tensors of the CPU")


@in_interpreter
@given(rules(), st.lists(st.tuples(TEXTS, st.integers(1, 6)), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_the_kernel_proposes_what_the_host_proposes(rule, rows):
    check_look_up(device_lookup.look_up, rule, [text for text, _ in rows], [depth for _, depth in rows])


@in_interpreter
def test_the_kernel_finds_matches_in_every_tile():
    rule, texts = LookupRule(3, 1, False, ()), [7, 8, 9, 5, *range(100, 2500), 7, 8, 9]
    history = torch.tensor([[*texts, 0], [*texts[::-1], 0]], dtype=torch.int32)
    for latest in (False, True):
        rule = replace(rule, latest=latest)
        given = (
            Texts(history, torch.tensor([len(texts) - 1] * 2)),
            rule,
            torch.tensor([1, 0]),
            torch.tensor([3, 3]),
            3,
        )
        expected, got = lookup.look_up_plain(*given), device_lookup.look_up(*given)
        assert [part.tolist() for part in got] == [part.tolist() for part in expected]


def sees_the_end(texts: Texts, rule: LookupRule, *rest):
    """Broken: the newest tokens match themselves."""
    return lookup.look_up(Texts(texts.history, texts.length + 1), rule, *rest)


def other_end(texts: Texts, rule: LookupRule, *rest):
    return lookup.look_up(texts, replace(rule, latest=not rule.latest), *rest)


def past_eos(texts: Texts, rule: LookupRule, *rest):
    return lookup.look_up(texts, replace(rule, eos_ids=()), *rest)


def any_window(texts: Texts, rule: LookupRule, *rest):
    return lookup.look_up(texts, replace(rule, window_max=rule.window_min), *rest)


def wrong_rows(texts: Texts, rule: LookupRule, index: torch.Tensor, *rest):
    return lookup.look_up(texts, rule, index.flip(0), *rest)


@pytest.mark.parametrize("wrong", [sees_the_end, other_end, past_eos, any_window, wrong_rows])
def test_wrong_lookups_are_noticed(wrong):
    texts = [[1, 2, 3, 1, 2], [1, 2, 10, 1, 2, 20, 1, 2], [1, 2, 3, 4, 2, 3, 9, 4, 2, 3], [5, 0, 6, 5], [7, 8]]
    with pytest.raises(AssertionError):
        check_look_up(wrong, LookupRule(3, 1, False, (0,)), texts, [4, 3, 4, 4, 2])


def test_a_row_alone_and_among_others_proposes_the_same():
    rule, texts = LookupRule(3, 1, False, ()), texts_of([[1, 2, 3, 1, 2], [9] * 30, [4, 5, 4]])
    together = lookup.look_up(texts, rule, torch.arange(3), torch.full((3,), 4), 4)
    for row in range(3):
        alone = lookup.look_up(texts, rule, torch.tensor([row]), torch.tensor([4]), 4)
        assert [part.tolist() for part in alone] == [part[row : row + 1].tolist() for part in together]


def test_rows_are_on_the_device_where_the_target_is_or_where_asked():
    tables = object()
    view = replace(VIEW, tables=tables)
    assert not NgramDrafter().open(view, NoPort(), NoPort()).on_device
    assert NgramDrafter().open(replace(view, device="cuda:0"), NoPort(), NoPort()).on_device
    assert not NgramDrafter(on_device=False).open(replace(view, device="cuda:0"), NoPort(), NoPort()).on_device
    rows = NgramDrafter(on_device=True, eos_ids=(7,)).open(view, NoPort(), NoPort())
    assert isinstance(rows, DeviceLookupRows)
    assert rows._rule.eos_ids == (0, 7)


def test_streams_with_device_lookup_are_those_of_plain_decoding():
    coverage = Coverage(families=("toy",), batches=(1, 3), chunks=(7,), depths=(1, 4))
    report = check_provider(lambda: NgramDrafter(on_device=True), coverage)
    assert report.ok, report
    assert report.accepted > 0
