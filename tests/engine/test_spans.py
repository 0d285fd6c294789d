"""Spans of rows: who gets them, when they start, how wide their windows are, what is counted, preemption."""

from __future__ import annotations

import gc

import pytest
from tests.fill.kit import deliver, make_row, plain

from paceline.core.round import RowResult
from paceline.core.row import Row
from paceline.engine.spans import RowSpans, span_width

TEXT = [100 + n for n in range(200)]


def started_row(spans: RowSpans, matched: int = 4) -> Row:
    """A row whose text is ``matched`` ids into the prediction behind its first token."""
    row = make_row(TEXT)
    spans.open_row(row, accepts=True)
    deliver(spans, row, plain(TEXT[0]), 1)
    for token in TEXT[1 : 1 + matched]:
        deliver(spans, row, plain(token), 1)
    return row


def test_rows_that_do_not_ask_and_drafters_that_do_not_accept_have_no_spans() -> None:
    for row, accepts, fill_span in (
        (make_row(None), True, 32), (make_row(TEXT), False, 32), (make_row(TEXT), True, 0)
    ):  # fmt: skip
        spans = RowSpans(fill_span)
        spans.open_row(row, accepts)
        for token in TEXT[:9]:
            deliver(spans, row, plain(token), 1)
        assert not spans.started(row)
        assert spans.proposals(row, 4, alone=True) == []
        spans.suspend(row)
        spans.resume(row)
        spans.close_row(row)
        assert row.fill.spans == 0


def test_a_span_supplies_proposals_once_a_draw_has_matched_its_beginning() -> None:
    spans = RowSpans()
    row = make_row(TEXT)
    spans.open_row(row, accepts=True)
    deliver(spans, row, plain(TEXT[0]), 1)
    assert not spans.started(row)
    deliver(spans, row, plain(TEXT[1]), 1)
    assert spans.started(row)
    ids = spans.proposals(row, 4, alone=True)
    assert ids == TEXT[2 : 2 + len(ids)]


def test_a_row_of_a_tail_split_is_asked_before_its_first_draw() -> None:
    spans = RowSpans()
    row = make_row(TEXT)
    spans.open_row(row, accepts=True)
    spans.ask(row)
    deliver(spans, row, plain(TEXT[0]), 1)
    assert spans.started(row)


@pytest.mark.parametrize(
    ("depth", "alone", "fill_span", "width"),
    [(0, True, 32, 31), (16, True, 32, 31), (0, False, 32, 8), (4, False, 32, 8), (16, False, 32, 16),
     (16, False, 8, 7), (0, True, 1, 1), (0, False, 4, 3)],
)  # fmt: skip
def test_the_width_of_a_span_window(depth: int, alone: bool, fill_span: int, width: int) -> None:
    assert span_width(depth, alone, fill_span) == width


def test_proposals_end_with_the_budget_and_the_width() -> None:
    spans = RowSpans()
    row = started_row(spans, matched=20)
    assert len(spans.proposals(row, 0, alone=True)) == 31
    assert len(spans.proposals(row, 0, alone=False)) == 8
    assert len(spans.proposals(row, 12, alone=False)) == 12
    row.generated = row.request.max_tokens - 3
    assert spans.proposals(row, 0, alone=True) == TEXT[21:24]


def test_a_part_of_a_burst_that_was_not_taken_is_not_walked() -> None:
    spans = RowSpans()
    row = started_row(spans)
    ids = tuple(spans.proposals(row, 0, alone=True))
    matched = row.fill.matched
    deliver(spans, row, RowResult(ids, (*ids, TEXT[5 + len(ids)]), len(ids), source="span"), 3, continues=False)
    assert row.fill.matched - matched == 4 + 3
    assert not spans.started(row)


def test_a_span_round_counts_what_it_verified_and_other_rounds_do_not() -> None:
    spans = RowSpans()
    row = started_row(spans)
    assert (row.fill.rounds, row.fill.verified) == (0, 0)
    ids = tuple(spans.proposals(row, 0, alone=True))
    deliver(spans, row, RowResult(ids, (ids[0], ids[1], -7), 2, source="span"), 3)
    fill = row.fill
    assert (fill.rounds, fill.verified, fill.accepted) == (1, len(ids), 2)
    assert fill.rejected_prediction_tokens == len(ids) - 2
    assert fill.accepted_prediction_tokens == 4 + 2, "the ids drawn one by one and those of the window"


def test_an_expected_number_of_right_ids_for_rows_that_have_a_span() -> None:
    spans = RowSpans()
    row = started_row(spans, matched=8)
    assert 4 < spans.expected(row, 0, alone=False) <= 8 < spans.expected(row, 0, alone=True)
    assert spans.expected(make_row(None), 0, alone=True) == 0


def test_a_preempted_row_goes_on_with_its_session() -> None:
    spans = RowSpans()
    row = started_row(spans)
    spans.suspend(row)
    assert row.fill.matched == 4, "the open span is settled"
    spans.close_row(row)  # its state is released, it itself is not gone
    row.index = 5
    spans.resume(row)
    assert not spans.started(row)
    deliver(spans, row, plain(TEXT[5]), 1)
    assert spans.started(row)
    assert spans.proposals(row, 0, alone=True)[:2] == TEXT[6:8]
    spans.close_row(row)
    assert not spans.started(row)
    assert row.fill.matched == 5


def test_nothing_is_kept_of_rows_that_are_gone() -> None:
    spans = RowSpans()
    closed, waiting = started_row(spans), started_row(spans)
    spans.close_row(closed)
    spans.suspend(waiting)
    assert len(spans._followers) == 1
    del waiting
    gc.collect()
    assert len(spans._followers) == 0
