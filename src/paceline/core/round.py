"""What a round found for each row and what delivery made of it. Records; only commit changes row state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .acceptance import Acceptance

#: What a round is for one row: its proposals came from the drafter, from a span, or there were none (spec 1.6).
Source = Literal["draft", "span", "plain"]

#: Where one delivered token comes from: an accepted proposal of the drafter or of a copied span, the target's own draw
#: in place of a wrong proposal, its draw behind proposals that were all right, or a draw of a round without proposals.
Origin = Literal["drafted", "copied", "corrected", "bonus", "plain"]

OutcomeKind = Literal["continue", "stop", "length", "failed", "cancelled"]


@dataclass(frozen=True)
class RowResult:
    """Acceptance of one row as read from a round: ``emitted`` content tokens (never EOS), ``accepted`` leading
    proposals among them, whether the last draw was an EOS (then ``end_id`` is that id), whether the grammar ended,
    whether it is ``bad`` (logits not finite, or the ``error`` given)."""

    proposals: tuple[int, ...]
    emitted: tuple[int, ...]
    accepted: int
    saw_eos: bool = False
    grammar_done: bool = False
    bad: bool = False
    source: Source = "plain"
    end_id: int | None = None
    error: BaseException | None = None
    metadata: Sequence[Any] | None = None

    @classmethod
    def of(cls, acceptance: Acceptance, source: Source) -> RowResult:
        return cls(
            acceptance.proposals,
            tuple(acceptance.emitted),
            acceptance.accepted,
            acceptance.saw_eos,
            acceptance.grammar_done,
            source=source,
            end_id=acceptance.end_id,
        )

    @property
    def used_draws(self) -> int:
        return len(self.emitted) + self.saw_eos

    @property
    def correction(self) -> int | None:
        """The emitted token that was no matched proposal, if the burst ends in one."""
        return self.emitted[-1] if len(self.emitted) > self.accepted else None

    def cut_before(self, stop_ids: frozenset[int]) -> RowResult:
        """As if the first emitted id among ``stop_ids`` had been an EOS (stop ids the device does not hold, 7.13)."""
        for place, token in enumerate(self.emitted):
            if token in stop_ids:
                return replace(
                    self,
                    emitted=self.emitted[:place],
                    accepted=min(self.accepted, place),
                    saw_eos=True,
                    end_id=token,
                    metadata=None if self.metadata is None else self.metadata[:place],
                )
        return self


@dataclass(frozen=True, slots=True)
class Burst:
    """What stands behind a burst under delivery: ``proposed`` tokens by ``source``, the first ``accepted`` right."""

    proposed: int
    accepted: int
    source: Source

    @classmethod
    def of(cls, result: RowResult) -> Burst:
        return cls(len(result.proposals), result.accepted, result.source)

    def origin(self, place: int) -> Origin:
        """Where the token at ``place`` of the burst comes from."""
        if place < self.accepted:
            return "copied" if self.source == "span" else "drafted"
        if not self.proposed:
            return "plain"
        return "bonus" if self.accepted == self.proposed else "corrected"


@dataclass(frozen=True)
class Outcome:
    """What delivering a burst meant for its row (spec 9.2): ``taken`` tokens counted, ``retained`` proposals kept in
    the state beside the pending token, ``halted`` by its consumer, and the error of a failed or cancelled row."""

    kind: OutcomeKind
    taken: int
    retained: int
    halted: bool = False
    error: BaseException | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether the round's retained inputs enter the row's state."""
        return self.kind not in ("failed", "cancelled")
