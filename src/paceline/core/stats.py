"""Speculation statistics of one row (spec 17) and of the whole engine. Records only: the engine updates them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any


@dataclass
class SpecStats:
    """What speculation did for one row. A *draft round* is a round in which the row had drafter proposals.

    Identities (spec 17.4, held by :meth:`check`): ``sum(acceptance_lengths) == accepted == sum(accepted_by_pos)``,
    ``sum(drafted_by_pos) == drafted``, ``len(acceptance_lengths) == rounds``,
    ``target_calls == 1 + rounds + span_rounds + plain_rounds`` (once prefill is complete).

    ``phase_ms``: draft, verify, sample, commit and the number of rounds, where phases are timed (spec 17.6).
    ``time_saved_ms``: estimate against the cost table of what plain decoding would have taken longer (negative: less);
    ``None`` without a table.
    """

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    span_rounds: int = 0
    plain_rounds: int = 0
    target_calls: int = 0
    acceptance_lengths: list[int] = field(default_factory=list)
    drafted_by_pos: list[int] = field(default_factory=list)
    accepted_by_pos: list[int] = field(default_factory=list)
    generated: int = 0
    phase_ms: dict[str, float] | None = None
    time_saved_ms: float | None = None

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    @property
    def forwards(self) -> int:
        """Target forwards spent on decoding: all but the prefill's."""
        return max(0, self.target_calls - 1)

    @property
    def tokens_per_forward(self) -> float:
        return self.generated / self.forwards if self.forwards else 0.0

    @property
    def forwards_saved(self) -> int:
        """Forwards that plain decoding would have needed on top."""
        return max(0, self.generated - 1 - self.forwards)

    def check(self) -> None:
        """Raise ``AssertionError`` naming the identity of spec 17.4 that does not hold."""
        assert sum(self.acceptance_lengths) == self.accepted == sum(self.accepted_by_pos), "accepted"
        assert sum(self.drafted_by_pos) == self.drafted, "drafted"
        assert len(self.acceptance_lengths) == self.rounds, "rounds"
        if self.target_calls:
            assert self.target_calls == 1 + self.rounds + self.span_rounds + self.plain_rounds, "target_calls"
        for by_pos in (self.drafted_by_pos, self.accepted_by_pos):
            assert all(a >= b for a, b in pairwise(by_pos)), "by position"


@dataclass
class FillStats:
    """What copied spans did for one row; apart from the drafter's figures (spec 12).

    ``spans``: spans committed, ``started``: those of which at least one id matched. ``matched``: ids of committed spans
    that the text repeated, whether they were verified in a window or drawn one by one. ``rounds``: span rounds;
    ``verified``: span ids in their windows, ``accepted``: those the target confirmed.

    ``accepted_prediction_tokens`` and ``rejected_prediction_tokens`` are what usage reports (spec 12.8): ``matched``
    and ``verified - accepted`` of spans that come from the request's prediction.
    """

    spans: int = 0
    started: int = 0
    matched: int = 0
    rounds: int = 0
    verified: int = 0
    accepted: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def rejected(self) -> int:
        return self.verified - self.accepted


@dataclass
class EngineStats:
    """Figures of the whole engine since it started; names and definitions are those of conventions.md.

    ``span_tokens``: ids of copied spans that were verified, ``accepted_span_tokens``: those that were right.
    ``time_saved_ms``: sum over the requests. ``losing_stretches``: stretches of draft rounds that were slower than
    plain decoding, ``losing_reason`` why the last stretch was, ``None`` if it was not. ``cost_factors``: by what plain,
    verify and draft costs were corrected. ``phase_ms``, ``op_counts`` (phase -> operation -> count) and ``layer_ms``
    (part of the target -> ms) are there when asked for.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_tokens_by_pos: list[int] = field(default_factory=list)
    accepted_tokens_by_pos: list[int] = field(default_factory=list)
    plain_rounds: int = 0
    span_rounds: int = 0
    span_tokens: int = 0
    accepted_span_tokens: int = 0
    rounds: int = 0
    depth_histogram: dict[int, int] = field(default_factory=dict)
    host_reads: int = 0
    device_rounds: int = 0
    ahead_rounds: int = 0
    flushes: int = 0
    probes: int = 0
    dropped_positions: int = 0
    drafter_failures: int = 0
    bad_rows: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    time_saved_ms: float = 0.0
    losing_stretches: int = 0
    losing_reason: str | None = None
    cost_factors: dict[str, float] = field(default_factory=dict)
    phase_ms: dict[str, float] | None = None
    op_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    layer_ms: dict[str, float] = field(default_factory=dict)

    def snapshot(self) -> EngineStats:
        """A copy, taken from any thread while the engine counts on: each list and table is copied in one step."""
        copied: dict[str, Any] = {each.name: copy.copy(getattr(self, each.name)) for each in fields(self)}
        return EngineStats(**copied)
