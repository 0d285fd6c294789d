"""Drafts as lists and as tensors: whoever asks for either gets the same proposals."""

from __future__ import annotations

import pytest
import torch

from paceline.core.batch import Draft


def test_a_draft_of_the_host_has_lists_at_once_and_tensors_on_demand() -> None:
    draft = Draft.from_lists([[4, 5, 6], [], [7]], [3, 0, 1])
    assert draft.to_lists() == [[4, 5, 6], [], [7]]
    assert draft.matches == [3, 0, 1]
    assert draft.lengths.tolist() == [3, 0, 1]
    assert draft.tokens.dtype == draft.lengths.dtype == torch.int32
    assert [row[:n] for row, n in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)] == draft.to_lists()
    assert Draft(draft.tokens, draft.lengths).to_lists() == draft.to_lists()


def test_rows_without_proposals_make_a_tensor_without_columns() -> None:
    draft = Draft.from_lists([[], []])
    assert draft.tokens.shape == (2, 0)
    assert draft.matches is None


def test_changing_what_a_draft_gave_does_not_change_it() -> None:
    draft = Draft.from_lists([[1, 2]])
    draft.to_lists()[0].append(3)
    assert draft.to_lists() == [[1, 2]]


def test_a_draft_has_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        _ = Draft.from_lists([[1]]).scores  # type: ignore[attr-defined]
