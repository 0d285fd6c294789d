"""Speculation statistics of one row (spec 17) and of the whole engine. Records only: the engine updates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class SpecStats:
    """What speculation did for one row. A *draft round* is a round in which the row had drafter proposals.

    Identities (spec 17.4, held by :meth:`check`): ``sum(acceptance_lengths) == accepted == sum(accepted_by_pos)``,
    ``sum(drafted_by_pos) == drafted``, ``len(acceptance_lengths) == rounds``,
    ``target_calls == 1 + rounds + span_rounds + plain_rounds`` (once prefill is complete).
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
class EngineStats:
    """Figures of the whole engine since it started; names and definitions are those of conventions.md."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_tokens_by_pos: list[int] = field(default_factory=list)
    accepted_tokens_by_pos: list[int] = field(default_factory=list)
    plain_rounds: int = 0
    span_rounds: int = 0
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
