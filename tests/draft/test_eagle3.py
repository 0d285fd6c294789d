"""The EAGLE-3 drafter: its cached, lagging, chained proposals are those of a model run anew over the whole text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draft.eagle_kit import SHAPE, VIEW, Loop, drafter, tap_of
from tests.draft.kit import NoPort

from paceline.core.errors import DraftError
from paceline.draft.base import TargetView
from paceline.draft.kinds import _eagle_places as places_module
from paceline.draft.kinds._eagle_places import GROUP, TAP_RING, TapRing
from paceline.draft.kinds._eagle_rows import Eagle3Rows
from paceline.draft.kinds.eagle3 import default_taps, random_eagle3
from paceline.engine.build import target_view
from paceline.testing.conformance import Coverage, check_provider
from paceline.testing.grid import target_of

ROUNDS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
        st.booleans(),
        st.sampled_from([(), (), (1,), (0, 2)]),
        st.sampled_from(["", "", "", "catch up", "resume"]),
    ),
    min_size=1,
    max_size=7,
)


def play(rounds, seed: int = 0) -> Loop:
    """Run rounds of (depths, whether on the device, rows with spans, what happens before)."""
    loop = Loop(seed=seed)
    for depths, on_device, spans, before in rounds:
        if before == "catch up":
            loop.drafts.catch_up(loop.live[:2])
        if before == "resume":
            loop.resume(1)
        loop.round(depths, on_device=on_device, spans=spans)
    return loop


@given(ROUNDS, st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_proposals_are_those_of_a_run_over_the_whole_text(rounds, seed):
    loop = play(rounds, seed)
    loop.round((2, 2, 2), on_device=True)
    assert loop.differences == []
    lengths = loop.tables.length
    assert bool((loop.tables.draft_length <= lengths).all())


@pytest.mark.parametrize("on_device", [True, False])
def test_rows_that_lag_further_than_a_round_or_the_ring_reaches_are_caught_up(on_device):
    loop = Loop(seed=4)
    for _ in range(TAP_RING + 12):
        loop.round((0, 0, 1), on_device=on_device)
    loop.round((3, 1, 2), on_device=on_device)
    assert loop.differences == [] and loop.compared


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("span", [TAP_RING // 2, TAP_RING - 1, TAP_RING, TAP_RING + 9])
def test_windows_wider_than_the_ring_are_used_up_in_pieces(span, on_device):
    loop = Loop(seed=6, span=span)
    for _ in range(TAP_RING // 2 - 3):
        loop.round((0, 0, 0), on_device=on_device)
    loop.round((0, 2, 3), on_device=on_device, spans=(0,))
    loop.round((3, 3, 3), on_device=on_device)
    assert loop.differences == []


MIXED = [
    ((4, 2, 3), True, (), ""),
    ((0, 3, 4), True, (), ""),
    ((4, 4, 0), False, (), ""),
    ((1, 0, 2), False, (1,), ""),
    ((3, 4, 4), True, (), "resume"),
]


def no_first_place(monkeypatch):
    """Slot 0, which holds no pair, is seen."""
    monkeypatch.setattr(places_module, "ShiftedReads", lambda t, b, first, *rest: _reads(t, b, first * 0, *rest))


def _reads(*fields):
    from paceline.kernels.shifted import ShiftedReads

    return ShiftedReads(*fields)


def own_taps(monkeypatch):
    """The pair of x_q gets the tap of its own position."""
    monkeypatch.setattr(TapRing, "get", _shifted(TapRing.get))


def _shifted(get):
    return lambda self, index, positions: get(self, index, positions + 1)


def untrue_pairs_stay(monkeypatch):
    """What the chain stored with its own hidden states is taken for true."""
    inner = Eagle3Rows._chain

    def chain(self, index, depths, depth, draw):
        draft = inner(self, index, depths, depth, draw)
        self._placer.coverage.covered[index] += torch.where(depths > 0, depths, 1) - 1
        return draft

    monkeypatch.setattr(Eagle3Rows, "_chain", chain)


def rejected_inputs_kept(monkeypatch):
    inner = TapRing.put
    monkeypatch.setattr(TapRing, "put", lambda self, i, s, taps, counts: inner(self, i, s - 1, taps, counts))


def one_step(monkeypatch):
    """All tokens of a chain are drawn with the noise of the first."""
    inner = Eagle3Rows._chain
    monkeypatch.setattr(
        Eagle3Rows, "_chain", lambda self, i, d, n, draw: inner(self, i, d, n, lambda logits, offset: draw(logits, 0))
    )


@pytest.mark.parametrize("break_it", [no_first_place, own_taps, untrue_pairs_stay, rejected_inputs_kept, one_step])
def test_broken_drafters_are_noticed(monkeypatch, break_it):
    break_it(monkeypatch)
    assert play(MIXED).differences


def test_a_prefix_without_the_drafters_state_is_not_read():
    loop = Loop(rows=1, seed=2)
    (old,) = loop.live
    start = old.prompt_tokens // 2 + 1
    loop.drafts.close_row(old)
    loop.drafts.open_row(old, None)
    old.tokens = [*old.request.prompt_ids, 1, 2, 3]
    old.length = len(old.tokens)
    loop.tables.reserve(old.index, old.length)
    loop.prefill(old, start, 4)
    loop.join(old)
    loop.first = lambda row: start + 1  # type: ignore[method-assign]
    loop.round((3,), on_device=False)
    loop.round((3,), on_device=True)
    assert loop.differences == []


def test_coverage_follows_the_text_and_a_catch_up_completes_it():
    loop = Loop(seed=9)
    loop.round((4, 0, 2), on_device=False)
    loop.round((0, 0, 0), on_device=False)
    lags = (loop.tables.length - loop.tables.draft_length).tolist()
    assert all(lag > 0 for lag in lags)
    loop.drafts.catch_up(loop.live)
    assert torch.equal(loop.tables.draft_length, loop.tables.length)


def test_rows_that_are_not_live_draft_nothing_and_keep_nothing():
    loop = Loop(seed=1)
    tables, index = loop.tables, torch.tensor([row.index for row in loop.live])
    tables.stop(loop.live[1].index)
    before = [memory.clone() for memory in tables.store.tensors(GROUP)]
    draft = loop.drafts.draft_device(index, torch.tensor([0, 3, 0]), 3)
    assert draft.lengths.tolist() == [0, 0, 0]
    for memory, old in zip(tables.store.tensors(GROUP), before, strict=True):
        assert torch.equal(memory[tables.block_size :], old[tables.block_size :]), "only scratch may change"


def test_the_head_lists_ids_ascending_with_the_end_ids_among_them():
    ids = drafter().layer.ids.tolist()
    assert len(ids) == SHAPE.listed and ids == sorted(set(ids)) and set(VIEW.eos_ids) <= set(ids)
    assert random_eagle3(VIEW, listed=VIEW.vocab_size).layer.ids is None


def test_a_shared_embedding_is_not_counted_and_equal_seeds_give_equal_weights():
    own, again = (random_eagle3(VIEW, SHAPE, seed=5) for _ in range(2))
    assert torch.equal(own.layer.weights.qkv.weight, again.layer.weights.qkv.weight)
    table = torch.zeros(VIEW.vocab_size, SHAPE.hidden, dtype=torch.float64)
    shared = random_eagle3(VIEW, SHAPE, seed=5, embedding=table)
    assert shared.layer.embedding is table
    assert own.weight_bytes - shared.weight_bytes == table.nbytes


def test_the_layers_read_by_default():
    assert default_taps(36) == (1, 17, 32)
    assert default_taps(2) == (1, 0, -1)


def test_a_target_of_another_width_is_refused():
    loop = Loop()
    view = TargetView(VIEW.vocab_size, 8, 2, 64, (), "cpu", "float64", tables=loop.tables)
    with pytest.raises(DraftError, match="width 6"):
        drafter().open(view, NoPort(), NoPort())
    with pytest.raises(DraftError, match="row tables"):
        drafter().open(VIEW, NoPort(), NoPort())


def test_taps_in_the_ring_survive_until_they_are_overwritten():
    ring = TapRing(2, 18, torch.float64, torch.device("cpu"))
    text = list(range(90))
    taps = torch.stack([tap_of(text[: n + 1]) for n in range(90)])
    index = torch.tensor([1])
    ring.put(index, torch.tensor([0]), taps.unsqueeze(0), torch.tensor([80]))
    kept = ring.get(index, torch.arange(80 - TAP_RING, 80).unsqueeze(0))[0]
    assert torch.equal(kept, taps[80 - TAP_RING : 80])


def test_streams_with_it_are_those_of_plain_decoding():
    target, decoder = target_of("llama")
    view = target_view(target, decoder.eos_ids, None)
    coverage = Coverage(batches=(1, 3), chunks=(7, 512), depths=(1, 4))
    report = check_provider(lambda: random_eagle3(view, listed=200, sharpness=0.3), coverage)
    assert report.ok, report
    assert report.drafted > 0 and report.accepted > 0
