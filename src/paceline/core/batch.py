"""What one forward or one round works on, as tensors. Rows are named by their permanent index; nothing is copied.

Legend: B rows, N flat token rows, K depth, H hidden. ``torch`` is imported for types only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .row import Row


@dataclass(frozen=True)
class ForwardBatch:
    """Inputs of one target (or drafter) forward: the rows' new tokens laid flat, ragged, row after row.

    Row b owns flat places ``sum(query_lens[:b]) .. + query_lens[b]``; its tokens sit at absolute positions
    ``context_lens[b] ..`` and attend to everything before them (causal, plus the sliding window of their layer).

    - ``tokens`` [N] int64, ``positions`` [N] int64.
    - ``indices`` [B] int64: row indices in the tables. ``query_lens``, ``context_lens``: host integers, one per row.
    - ``slots``: block group -> [N] int64, flat KV slot (block id * block size + offset) that each token is written to;
      the group's scratch slots for inputs whose position may not be kept.
    - ``block_tables``: block group -> [B, M] int64 block ids in logical order, enough to cover
      ``context_lens + query_lens``, rows padded with the scratch block.
    - ``width``: set when the batch was laid out on the device: every row has this many tokens (the last ones may be
      padding, whose slots are scratch), and what the host cannot know stands in tensors only: ``positions`` are exact,
      ``context_lens`` are exact on the CPU and upper bounds elsewhere.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    indices: torch.Tensor
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    slots: Mapping[str, torch.Tensor]
    block_tables: Mapping[str, torch.Tensor]
    width: int | None = None

    @property
    def num_rows(self) -> int:
        return len(self.query_lens)


@dataclass(frozen=True)
class ForwardResult:
    """``hidden`` [N, H]: what the LM head reads (after the final norm). ``context``: the tap layers' hidden states
    concatenated on the feature axis in declared order [N, taps * H], or ``None`` when no taps were asked for."""

    hidden: torch.Tensor
    context: torch.Tensor | None = None

    @property
    def for_drafter(self) -> torch.Tensor:
        """What a drafter consumes: the taps if declared, else the hidden states."""
        return self.hidden if self.context is None else self.context


@dataclass(frozen=True)
class Window:
    """One verified window of a round: the inputs as they were forwarded and what a drafter may read of them.

    ``batch`` holds each row's pending token and proposals; ``context`` [N, ...] the taps, or the hidden states.
    """

    batch: ForwardBatch
    context: torch.Tensor


@dataclass(frozen=True)
class Draft:
    """Proposals of one round, ragged: ``tokens`` [B, K] int32, ``lengths`` [B] int32 with 0 <= lengths <= K.

    Entries past a row's length mean nothing and may hold anything. ``matches``: for drafters that look text up, how
    long a match each row's proposals rest on, as the gate files them: 0 = not known, 1 = a doubtful one, m + 1 = one
    sound occurrence of m tokens, more where several occurrences agree. ``lists``: the proposals as lists, where the
    host made them: reading them back from tensors would be for nothing.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    matches: Sequence[int] | None = None
    lists: Sequence[Sequence[int]] | None = None

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], matches: Sequence[int] | None = None) -> Draft:
        """Build from one list of token ids per row (host). The tensors are made when somebody asks for them."""
        return ListedDraft(lists, matches)

    def to_lists(self) -> list[list[int]]:
        """One list of token ids per row; reads the tensors to the host if need be."""
        if self.lists is not None:
            return [list(proposal) for proposal in self.lists]
        tokens: list[list[int]] = self.tokens.tolist()
        return [row[:n] for row, n in zip(tokens, self.lengths.tolist(), strict=True)]


class ListedDraft(Draft):
    """A draft that the host made: lists at once, tensors on demand, for most who draft on the host need none."""

    def __init__(self, lists: Sequence[Sequence[int]], matches: Sequence[int] | None = None) -> None:
        object.__setattr__(self, "lists", [list(proposal) for proposal in lists])
        object.__setattr__(self, "matches", matches)

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in ("tokens", "lengths"):
            raise AttributeError(name)
        import torch

        assert self.lists is not None
        lengths = [len(proposal) for proposal in self.lists]
        width = max(lengths, default=0)
        padded = [[*proposal, *[0] * (width - len(proposal))] for proposal in self.lists]
        tokens = torch.tensor(padded, dtype=torch.int32).reshape(len(lengths), width)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "lengths", torch.tensor(lengths, dtype=torch.int32))
        return tokens if name == "tokens" else self.lengths


@dataclass(frozen=True)
class RoundBatch:
    """The rows a drafter is asked to work for, in round order.

    ``rows`` are the host rows, ``indices`` [B] int64 their table indices (on the host for drafters that look text up),
    ``depths`` the most proposals wanted per row (0 = none for this row).
    """

    rows: Sequence[Row]
    indices: torch.Tensor
    depths: Sequence[int]
