"""Processors of rows: at every position what the history there demands, however drafts and bursts fell before."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from tests.sampling.processors_kit import (
    PROGRAMS,
    VOCAB,
    Program,
    check_program,
    expected_window,
    logits_of,
    plain_process,
)

from paceline.core.errors import RequestError
from paceline.sampling.processors.chain import RowProcessor, apply_processors
from paceline.sampling.processors.edits import Edits
from paceline.sampling.processors.history import RowHistory
from paceline.sampling.processors.settings import DrySettings, ProcessorSettings, ThinkingBudget


@given(PROGRAMS)
@settings(max_examples=400)
def test_every_position_of_every_window_sees_its_own_history(program):
    check_program(program)


class KeepsRejected(RowProcessor):
    """Broken: what a window proposes enters the history, as if drafts were used draws."""

    def add_to(self, edits, first, proposals):
        super().add_to(edits, first, proposals)
        self.observe(proposals)


class MasksOneRowMore(RowProcessor):
    """Broken: the mask of the stop ids reaches one position too far."""

    def _add_bans(self, edits: Edits, first: int, proposals: list[int]) -> None:
        super()._add_bans(edits, first, proposals)
        place = self.settings.min_tokens - self.history.generated(0)
        if 0 <= place <= len(proposals):
            edits.ban(first + place, self.settings.stop_ids)


class OneTokenPerBurst(RowProcessor):
    """Broken: of each burst only the last token is counted, so strength depends on how draws fell into bursts."""

    def observe(self, tokens):
        counted = self._observers
        self._observers = []
        super().observe(tokens[:-1])
        self._observers = counted
        super().observe(tokens[-1:])


class ForgetsTheWindow(RowProcessor):
    """Broken: all positions of a window are processed with the history before it."""

    def add_to(self, edits, first, proposals):
        for place in range(len(proposals) + 1):
            super().add_to(edits, first + place, [])


@pytest.mark.parametrize("broken", [KeepsRejected, MasksOneRowMore, OneTokenPerBurst, ForgetsTheWindow])
def test_broken_variants_are_caught(broken):
    def fails(program: Program) -> bool:
        try:
            check_program(program, broken)
        except AssertionError:
            return True
        return False

    find(PROGRAMS, fails, settings=settings(max_examples=2000, phases=[Phase.generate]))


@given(PROGRAMS)
@settings(max_examples=100)
def test_state_grown_by_bursts_equals_state_made_from_scratch(program):
    grown = RowProcessor(program.settings, program.prompt)
    output = []
    for _, used in program.bursts():
        grown.observe(used)
        output += used
    fresh = RowProcessor(program.settings, program.prompt)
    fresh.observe(output)
    proposals = program.rounds[0][0]
    logits = logits_of(len(proposals) + 1, 3)
    got, want = (apply_processors(logits.clone(), [p], [proposals]) for p in (grown, fresh))
    assert torch.equal(got, want)


@given(PROGRAMS)
@settings(max_examples=100)
def test_a_window_changes_no_state_and_its_positions_equal_single_ones(program):
    processor = RowProcessor(program.settings, program.prompt)
    proposals = program.rounds[0][0]
    logits = logits_of(len(proposals) + 1, 5)
    window = apply_processors(logits.clone(), [processor], [proposals])
    assert torch.equal(apply_processors(logits.clone(), [processor], [proposals]), window)
    for place in range(len(proposals) + 1):
        walked = copy.deepcopy(processor)
        walked.observe(proposals[:place])
        single = apply_processors(logits[place : place + 1].clone(), [walked], [[]])
        assert torch.equal(single[0], window[place])


@given(st.lists(st.none() | PROGRAMS, min_size=1, max_size=4), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100)
def test_rows_do_not_see_each_other(programs, dtype):
    """A mixed batch gives each row what it gets alone; rows without processor keep their logits."""
    windows = [program.rounds[0][0] if program else [1, 2] for program in programs]
    processors = [program and RowProcessor(program.settings, program.prompt) for program in programs]
    parts = [logits_of(len(window) + 1, i, dtype) for i, window in enumerate(windows)]
    batch = apply_processors(torch.cat(parts), processors, windows)
    shares = batch.split([len(window) + 1 for window in windows])
    for part, got, processor, window in zip(parts, shares, processors, windows, strict=True):
        alone = apply_processors(part.clone(), [processor], [window]) if processor else part
        assert torch.equal(got, alone)


@given(PROGRAMS)
@settings(max_examples=60)
def test_single_precision_agrees_with_double(program):
    proposals = program.rounds[0][0]
    logits = logits_of(len(proposals) + 1, 1)
    want = expected_window(program, [], proposals, logits)
    processor = RowProcessor(program.settings, program.prompt)
    got = apply_processors(logits.float(), [processor], [proposals])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_logits_that_are_a_slice_of_a_wider_head_are_changed_in_place():
    wide = logits_of(3, 0, vocab=VOCAB + 2)
    kept = wide.clone()
    settings_ = ProcessorSettings(logit_bias={0: 1.0}, bad_words=((1,),), repetition_penalty=1.5)
    apply_processors(wide[:, :VOCAB], [RowProcessor(settings_, [2, 3])], [[4, 5]])
    program = Program(settings_, [2, 3], [])
    torch.testing.assert_close(wide[:, :VOCAB], expected_window(program, [], [4, 5], kept[:, :VOCAB]))
    assert torch.equal(wide[:, VOCAB:], kept[:, VOCAB:])


def test_logits_made_in_inference_mode_can_be_processed():
    with torch.inference_mode():
        logits = logits_of(1, 0)
    apply_processors(logits, [RowProcessor(ProcessorSettings(bad_words=((3,),)), [0])], [[]])
    assert logits[0, 3] == -math.inf


def test_ids_without_logit_touch_no_other_row():
    """A prompt may hold ids that the head does not score; the flat place of such an id belongs to the next row."""
    settings_ = ProcessorSettings(repetition_penalty=2.0, presence_penalty=1.0, dry=DrySettings(1.0, allowed_length=1))
    processor = RowProcessor(settings_, [VOCAB, 1, VOCAB])
    logits = logits_of(2, 0)
    got = apply_processors(logits.clone(), [processor, None], [[], []])
    assert torch.equal(got[1], logits[1])


def test_a_batch_without_processors_is_not_looked_at():
    assert RowProcessor.of(ProcessorSettings(min_tokens=3, dry=DrySettings(0.0)), [1]) is None
    logits = logits_of(2, 0)
    assert apply_processors(logits, [None], [[1]]) is logits
    assert torch.equal(logits, logits_of(2, 0))


def test_windows_and_logits_must_agree():
    with pytest.raises(ValueError, match="2 positions, the windows 3"):
        apply_processors(logits_of(2, 0), [RowProcessor(ProcessorSettings(logit_bias={1: 1.0}), [0])], [[1, 2]])


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_forced_position_does_not_hide_a_broken_row(broken):
    logits = logits_of(1, 0)
    logits[0, 2] = broken
    got = apply_processors(logits, [RowProcessor(ProcessorSettings(forced_tokens={0: 4}), [0])], [[]])
    assert not torch.isfinite(got.amax())


def test_a_repetition_without_end_bans_but_stays_finite():
    """The exponent of DRY is bounded, so that a forced id stays possible."""
    settings_ = ProcessorSettings(dry=DrySettings(5.0, base=4.0), forced_tokens={0: 1})
    got = apply_processors(logits_of(1, 0, torch.float32), [RowProcessor(settings_, [1] * 500)], [[]])
    assert math.isfinite(got[0, 1]) and got[0].argmax() == 1


def test_the_history_is_seen_through_a_window():
    history = RowHistory([1, 2, 3])
    assert history.tail([4, 5], 2, 4) == (2, 3, 4, 5)
    assert history.tail([4, 5], 2, 1) == (5,)
    assert history.tail([4, 5], 1, 5) is None
    assert history.tail([], 0, 0) == ()
    assert [history.token_at([4, 5], i) for i in range(5)] == [1, 2, 3, 4, 5]
    assert history.generated(2) == 2


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("logit_bias", lambda: ProcessorSettings(logit_bias={-1: 1.0})),
        ("logit_bias", lambda: ProcessorSettings(logit_bias={"x": 1.0})),
        ("logit_bias", lambda: ProcessorSettings(logit_bias={1: math.nan})),
        ("logit_bias", lambda: ProcessorSettings(logit_bias={1: math.inf})),
        ("bad_words", lambda: ProcessorSettings(bad_words=((),))),
        ("no_repeat_ngram_size", lambda: ProcessorSettings(no_repeat_ngram_size=-1)),
        ("min_tokens", lambda: ProcessorSettings(min_tokens=1.5)),
        ("forced_tokens", lambda: ProcessorSettings(forced_tokens={-1: 2})),
        ("repetition_penalty", lambda: ProcessorSettings(repetition_penalty=0.0)),
        ("presence_penalty", lambda: ProcessorSettings(presence_penalty=2.5)),
        ("frequency_penalty", lambda: ProcessorSettings(frequency_penalty=math.nan)),
        ("penalty_window", lambda: ProcessorSettings(penalty_window=-1)),
        ("thinking_budget", lambda: ThinkingBudget((1,), (2,), -1)),
        ("thinking_budget", lambda: ThinkingBudget((1,), (), 4)),
        ("dry_multiplier", lambda: DrySettings(-0.5)),
        ("dry_base", lambda: DrySettings(0.8, base=0.5)),
        ("dry_allowed_length", lambda: DrySettings(0.8, allowed_length=0)),
        ("dry_penalty_last_n", lambda: DrySettings(0.8, penalty_last_n=-2)),
        ("logit_bias", lambda: ProcessorSettings(logit_bias={9: 1.0}).check_vocab(9)),
        ("bad_words", lambda: ProcessorSettings(bad_words=((1, 9),)).check_vocab(9)),
        ("forced_tokens", lambda: ProcessorSettings(forced_tokens={0: 9}).check_vocab(9)),
        ("thinking_budget", lambda: ProcessorSettings(thinking=ThinkingBudget((1,), (9,), 1)).check_vocab(9)),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(field, build):
    with pytest.raises(RequestError) as caught:
        build()
    assert caught.value.field == field


def test_the_plain_computation_knows_the_published_examples():
    """Spot values of each formula, so that oracle and implementation cannot be wrong together."""
    x = [1.0, -1.0, 2.0, 0.0, 1.0]
    assert plain_process(x, [1], [2, 2], ProcessorSettings(repetition_penalty=2.0)) == [1.0, -2.0, 1.0, 0.0, 1.0]
    both = ProcessorSettings(presence_penalty=0.5, frequency_penalty=0.25)
    assert plain_process(x, [1], [2, 2], both) == [1.0, -1.0, 1.0, 0.0, 1.0]
    dry = ProcessorSettings(dry=DrySettings(1.0, base=2.0, allowed_length=2))
    assert plain_process(x, [0, 1, 2, 3, 0, 1, 2], [], dry) == [1.0, -1.0, 2.0, -2.0, 1.0]
