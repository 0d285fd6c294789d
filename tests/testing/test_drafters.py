"""The test drafters propose what their names promise, within the contract of draft/base.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from paceline.core.batch import RoundBatch
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.draft.base import DraftProvider, DraftRows, TargetView
from paceline.testing.drafters import (
    AdversarialDrafter,
    EmptyDrafter,
    OracleDrafter,
    RaggedDrafter,
    RandomDrafter,
    ScriptedDrafter,
)
from paceline.testing.faulty import (
    BREACHES,
    METHODS,
    Breach,
    DrafterBroke,
    FailingDrafter,
    Method,
    OutOfContractDrafter,
)

VOCAB = 50
PROMPT = (1, 2, 3)
DRAWS = (*range(10, 30), 7)  # 7 is the row's EOS
VIEW = TargetView(VOCAB, 4, 1, 100, (7,), "cpu", "float64")


def recorded(request: Request) -> Sequence[int]:
    return DRAWS


def row_at(taken: int, name: str = "r", index: int = 0) -> Row:
    """A row that decodes and has delivered the first ``taken`` recorded tokens."""
    request = Request(name, PROMPT, SamplingParams(temperature=0), 40, (7,), seed=3, draft_cap=8)
    row = Row(request, index, [*PROMPT, *DRAWS[:taken]], generated=taken, step=taken, length=2 + taken)
    row.pending = row.tokens[-1]
    return row


def open_rows(provider: DraftProvider, *rows: Row) -> DraftRows:
    draft_rows = provider.open(VIEW, None, None)  # type: ignore[arg-type]
    for row in rows:
        draft_rows.open_row(row, None)
    return draft_rows


def propose(rows: DraftRows, members: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
    draft = rows.draft(RoundBatch(members, torch.tensor([row.index for row in members]), depths))
    assert draft.tokens.dtype == draft.lengths.dtype == torch.int32
    assert draft.tokens.shape[0] == draft.lengths.shape[0] == len(members)
    return draft.to_lists()


def propose_one(provider: DraftProvider, taken: int, depth: int) -> list[int]:
    row = row_at(taken)
    return propose(open_rows(provider, row), [row], [depth])[0]


ALL: dict[str, Callable[[], DraftProvider]] = {
    "empty": EmptyDrafter,
    "scripted": lambda: ScriptedDrafter([[1] * 9] * 40),
    "oracle": lambda: OracleDrafter(recorded),
    "wrong": lambda: OracleDrafter(recorded, wrong_at=2),
    "random": RandomDrafter,
    "ragged": lambda: RaggedDrafter(recorded),
    "adversarial": lambda: AdversarialDrafter(recorded),
}


@pytest.mark.parametrize("name", ALL)
def test_proposals_respect_depth_and_vocabulary_in_every_round(name: str) -> None:
    rows = [row_at(0, "a", 4), row_at(0, "b", 2), row_at(0, "c", 9)]
    draft_rows = open_rows(ALL[name](), *rows)
    for taken in range(1, 21):
        for row in rows:
            row.tokens = [*PROMPT, *DRAWS[:taken]]
            row.pending = row.tokens[-1]
        depths = [taken % 9, 0, 8]
        lists = propose(draft_rows, rows, depths)
        assert all(len(proposal) <= depth for proposal, depth in zip(lists, depths, strict=True))
        assert all(0 <= token < VOCAB for proposal in lists for token in proposal)


def test_the_oracle_replays_the_record_up_to_its_end() -> None:
    assert propose_one(OracleDrafter(recorded), 1, 4) == [11, 12, 13, 14]
    assert propose_one(OracleDrafter(recorded), 18, 8) == [28, 29, 7], "the terminal EOS is proposed too"


@pytest.mark.parametrize("wrong_at", range(4))
def test_the_erring_oracle_is_wrong_at_its_place_only(wrong_at: int) -> None:
    proposal = propose_one(OracleDrafter(recorded, wrong_at), 1, 4)
    assert [place for place in range(4) if proposal[place] != DRAWS[1 + place]] == [wrong_at]


def test_a_script_is_read_round_by_round_and_then_empty() -> None:
    row = row_at(1)
    rows = open_rows(ScriptedDrafter([[5, 6, 7], [], [8]]), row)
    assert [propose(rows, [row], [2])[0] for _ in range(4)] == [[5, 6], [], [8], []]


def test_scripts_can_be_given_per_prompt() -> None:
    row = row_at(1)
    provider = ScriptedDrafter({PROMPT: [[5]], (9,): [[6]]})
    assert propose(open_rows(provider, row), [row], [4]) == [[5]]


def test_ragged_lengths_and_contents_vary_but_can_be_repeated() -> None:
    first = [propose_one(RaggedDrafter(recorded, seed=1), taken, 6) for taken in range(1, 15)]
    again = [propose_one(RaggedDrafter(recorded, seed=1), taken, 6) for taken in range(1, 15)]
    assert first == again
    assert len({len(proposal) for proposal in first}) > 3
    rightness = {t == DRAWS[taken + i] for taken, p in enumerate(first, 1) for i, t in enumerate(p)}
    assert rightness == {True, False}


def test_the_adversary_plays_every_trick() -> None:
    row = row_at(5)
    rows = open_rows(AdversarialDrafter(recorded), row)
    truth = list(DRAWS[5:9])
    wrong, ends, late, shifted, padding, right = (propose(rows, [row], [4])[0] for _ in range(6))
    assert all(a != b for a, b in zip(wrong, truth, strict=True))
    assert 7 in ends
    assert late[0] != truth[0] and late[1:] == truth[1:]
    assert shifted == list(DRAWS[6:10])
    assert padding == [row.pending] * 4
    assert right == truth


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("open", "close", "prefill", "commit", "consume")])
def test_the_failing_drafter_raises_at_the_chosen_call_only(method: Method) -> None:
    provider = FailingDrafter(OracleDrafter(recorded), method, call=2)
    row = row_at(1)
    rows = open_rows(provider)
    calls: dict[str, Callable[[], object]] = {
        "open_row": lambda: rows.open_row(row, None),
        "close_row": lambda: rows.close_row(row),
        "prepare_join": lambda: rows.prepare_join(row),
        "draft": lambda: propose(rows, [row], [3]),
        "catch_up": lambda: rows.catch_up([row]),
    }
    outcomes = []
    for _ in range(3):
        try:
            calls[method]()
        except DrafterBroke:
            outcomes.append("broke")
        else:
            outcomes.append("fine")
    assert outcomes == ["fine", "broke", "fine"]
    assert provider.raised == 1


def test_a_failing_drafter_otherwise_proposes_what_its_inner_one_does() -> None:
    assert propose_one(FailingDrafter(OracleDrafter(recorded), "commit"), 1, 3) == [11, 12, 13]


@pytest.mark.parametrize("breach", BREACHES)
def test_each_breach_of_contract_is_one(breach: Breach) -> None:
    rows_of = [row_at(1, "a", 0), row_at(1, "b", 1)]
    rows = open_rows(OutOfContractDrafter(breach), *rows_of)
    draft = rows.draft(RoundBatch(rows_of, torch.tensor([0, 1]), [3, 2]))
    if breach == "no_draft":
        assert draft is None
        return
    width, lengths = draft.tokens.shape[1], draft.lengths.tolist()
    broken = {
        "too_long": lengths == [6, 5],
        "outside_vocabulary": int(draft.tokens.max()) >= VOCAB,
        "negative": int(draft.tokens.min()) < 0,
        "length_past_width": max(lengths) > width,
        "negative_length": min(lengths) < 0,
        "row_missing": len(lengths) == 1,
    }
    assert broken[breach]
