"""Drafters for tests: scripted, oracle, wrong on purpose, ragged, empty. They know the recorded text, never the engine.

``Recorded`` maps a request to the draws that plain decoding makes for it (tokens, then a terminal EOS if any).
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
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


class DeviceOracleDrafter(DraftProvider):
    """Drafts and commits on the device, from the row tables' columns alone: the recorded draw at each step, spoilt at
    every ``wrong_every``-th step (0 = never) and cut to a ragged length if ``ragged``.

    It keeps ``draft_length`` as a drafter with KV would: whoever reads it can tell whether a commit was missed.
    """

    id = "device-oracle"
    external_tokens = True

    def __init__(self, recorded: Recorded, *, wrong_every: int = 5, ragged: bool = False) -> None:
        self.recorded = recorded
        self.wrong_every = wrong_every
        self.ragged = ragged

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        return _DeviceOracleRows(self, view)


class _DeviceOracleRows(DraftRows):
    """Per row index the recorded draws, as a tensor [R, steps]."""

    on_device = True

    def __init__(self, drafter: DeviceOracleDrafter, view: TargetView) -> None:
        assert view.tables is not None, "the engine opens drafters with its row tables"
        self._drafter = drafter
        self._tables = view.tables
        self._vocab_size = view.vocab_size
        self._draws = torch.zeros(view.tables.max_rows, view.max_model_len + 70, dtype=torch.int64)

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        draws = list(self._drafter.recorded(row.request))
        self._draws[row.index] = 0
        self._draws[row.index, : len(draws)] = torch.tensor(draws, dtype=torch.int64)
        self._tables.draft_length[row.index] = row.length

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: torch.Tensor) -> None:
        for row, start, count in zip(rows, batch.context_lens, batch.query_lens, strict=True):
            self._tables.draft_length[row.index] = start + count

    def draft(self, batch: RoundBatch) -> Draft:
        depths = torch.tensor(batch.depths, dtype=torch.int64)
        return self.draft_device(batch.indices, depths, max(batch.depths))

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        steps = self._tables.step[index].unsqueeze(1) + torch.arange(depth)
        tokens = self._draws[index.unsqueeze(1), steps]
        if self._drafter.wrong_every:
            tokens = torch.where(steps % self._drafter.wrong_every == 2, (tokens + 1) % self._vocab_size, tokens)
        lengths = torch.minimum(depths, steps[:, 0] % 4) if self._drafter.ragged else depths
        return Draft(tokens.to(torch.int32), lengths.to(torch.int32))

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        kept = torch.tensor([context + 1 for context in window.batch.context_lens]) + torch.tensor(accepted)
        self._tables.draft_length[batch.indices] = kept

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        assert window.batch.width is not None
        starts = window.batch.positions.view(-1, window.batch.width)[:, 0]
        live = self._tables.length[index] > starts
        self._tables.draft_length[index] = torch.where(live, starts + 1 + accepted, self._tables.draft_length[index])

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        self.commit(batch, window, [count - 1 for count in counts])


def upcoming(recorded: Recorded, row: Row) -> list[int]:
    """The recorded draws that follow the row's known text."""
    return list(recorded(row.request)[len(row.tokens) - row.prompt_tokens :])


def another_id(token: int, vocab_size: int) -> int:
    """An id of the vocabulary that is not ``token``."""
    return (token + 1) % vocab_size


def row_random(seed: int, row: Row) -> random.Random:
    """A generator that depends on the seed, the row's prompt and how far it has come, and on nothing else."""
    return random.Random(f"{seed}/{row.request.prompt_ids}/{len(row.tokens)}")
