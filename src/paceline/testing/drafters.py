"""Drafters for tests: scripted, oracle, wrong on purpose, ragged, empty. They know the recorded text, never the engine.

``Recorded`` maps a request to the draws that plain decoding makes for it (tokens, then a terminal EOS if any).
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.batch import Draft, RoundBatch, Window
from ..core.request import Request
from ..core.row import Row
from ..draft.base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView, TokenDrafter

Recorded = Callable[[Request], Sequence[int]]


class RowDrafter(DraftProvider):
    """Base for test drafters that look at the host row: implement :meth:`propose_for`.

    ``free=False`` makes the engine treat it as a drafter whose proposals cost a forward.
    """

    external_tokens = True

    def __init__(self, *, free: bool = True) -> None:
        self.free = free
        self.vocab_size = 0
        self.eos_ids: tuple[int, ...] = ()

    @abstractmethod
    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        """At most ``depth`` (>= 1) ids for the positions after ``row.tokens``."""

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        self.vocab_size = view.vocab_size
        self.eos_ids = view.eos_ids
        return _RowDrafts(self)


class _RowDrafts(DraftRows):
    """Asks the drafter row by row; keeps nothing."""

    def __init__(self, drafter: RowDrafter) -> None:
        self._drafter = drafter

    def draft(self, batch: RoundBatch) -> Draft:
        pairs = zip(batch.rows, batch.depths, strict=True)
        return Draft.from_lists([list(self._drafter.propose_for(row, k)) if k > 0 else [] for row, k in pairs])

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        return None


class EmptyDrafter(TokenDrafter):
    """Is asked, and never proposes anything."""

    id = "empty"

    def propose(self, state: Any, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return ()


class ScriptedDrafter(RowDrafter):
    """Proposes exactly the given lists, round by round (a round in which the row is asked), cut to the depth.

    ``script`` is one list of rounds for every row, or prompt -> rounds. After its end it proposes nothing.
    """

    id = "scripted"

    def __init__(
        self,
        script: Sequence[Sequence[int]] | Mapping[tuple[int, ...], Sequence[Sequence[int]]],
        *,
        free: bool = True,
    ) -> None:
        super().__init__(free=free)
        self._script = script
        self._asked: dict[str, int] = {}

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        rounds = self._script
        if isinstance(rounds, Mapping):
            rounds = rounds.get(row.request.prompt_ids, ())
        turn = self._asked.get(row.request.id, 0)
        self._asked[row.request.id] = turn + 1
        return rounds[turn][:depth] if turn < len(rounds) else ()


class OracleDrafter(RowDrafter):
    """Replays recorded runs: every proposal is what the target will draw, at full depth.

    With ``wrong_at=j`` the proposal at place j (from 0) of each round is another id: exactly j are accepted.
    """

    id = "oracle"

    def __init__(self, recorded: Recorded, wrong_at: int | None = None, *, free: bool = True) -> None:
        super().__init__(free=free)
        self._recorded = recorded
        self._wrong_at = wrong_at
        if wrong_at is not None:
            self.id = f"oracle-wrong-at-{wrong_at}"

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        proposal = upcoming(self._recorded, row)[:depth]
        if self._wrong_at is not None and self._wrong_at < len(proposal):
            proposal[self._wrong_at] = another_id(proposal[self._wrong_at], self.vocab_size)
        return proposal


class RandomDrafter(RowDrafter):
    """Proposes uniformly random ids at full depth: nearly always wrong."""

    id = "random"

    def __init__(self, seed: int = 0, *, free: bool = True) -> None:
        super().__init__(free=free)
        self._seed = seed

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        chance = row_random(self._seed, row)
        return [chance.randrange(self.vocab_size) for _ in range(depth)]


class RaggedDrafter(RowDrafter):
    """Random lengths 0..depth per row and round, each place right with probability ``right``."""

    id = "ragged"

    def __init__(self, recorded: Recorded, seed: int = 0, right: float = 0.75, *, free: bool = True) -> None:
        super().__init__(free=free)
        self._recorded = recorded
        self._seed = seed
        self._right = right

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        chance = row_random(self._seed, row)
        truth = upcoming(self._recorded, row)[: chance.randint(0, depth)]
        return [t if chance.random() < self._right else another_id(t, self.vocab_size) for t in truth]


class AdversarialDrafter(RowDrafter):
    """Proposes what a careless engine would accept wrongly, another trick each round:

    ids that are wrong everywhere; the row's EOS ids where the target draws something else; one wrong id followed by
    the right continuation; the right text shifted by one place; the pending token over and over (it looks like
    padding); the right text up to and past the end of the run.
    """

    id = "adversarial"

    def __init__(self, recorded: Recorded, *, free: bool = True) -> None:
        super().__init__(free=free)
        self._recorded = recorded
        self._turn: dict[str, int] = {}

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        turn = self._turn.get(row.request.id, 0)
        self._turn[row.request.id] = turn + 1
        truth = upcoming(self._recorded, row)
        truth += [row.pending] * (depth + 1 - len(truth))
        ends = [*row.request.eos_ids, *self.eos_ids, row.pending]
        tricks: list[list[int]] = [
            [another_id(t, self.vocab_size) for t in truth],
            [ends[place % len(ends)] for place in range(depth)],
            [another_id(truth[0], self.vocab_size), *truth[1:]],
            truth[1:],
            [row.pending] * depth,
            truth,
        ]
        return tricks[turn % len(tricks)][:depth]


def upcoming(recorded: Recorded, row: Row) -> list[int]:
    """The recorded draws that follow the row's known text."""
    return list(recorded(row.request)[len(row.tokens) - row.prompt_tokens :])


def another_id(token: int, vocab_size: int) -> int:
    """An id of the vocabulary that is not ``token``."""
    return (token + 1) % vocab_size


def row_random(seed: int, row: Row) -> random.Random:
    """A generator that depends on the seed, the row's prompt and how far it has come, and on nothing else."""
    return random.Random(f"{seed}/{row.request.prompt_ids}/{len(row.tokens)}")
