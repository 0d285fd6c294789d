"""Log-probabilities of chosen and top tokens, from raw or processed logits (spec 13.15). Knows no row and no request.

Ids are ordered by (logit descending, id ascending), as draws order them: the greedy token always has rank 1. What a
position gets depends on its own logits alone, never on the positions beside it or on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: Logits scored at once, so that temporaries stay in a few MiB.
SLICE_ELEMENTS = 1 << 20
#: Prompt positions projected to logits at once.
PROJECTED_ROWS = 32
#: ``top`` that asks for every id of the vocabulary.
WHOLE_VOCABULARY = -1

#: Probabilities are summed as whole multiples of 2**-42 where the order of a sum is not fixed: up to 2**20 ids.
_UNIT = 2.0**42
#: Ids whose maximum is taken together when a few of many are looked for.
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token's natural-log probability and ``rank`` (1 = the likeliest), and the likeliest ids with theirs.

    ``top_ids`` are in order and may hold the token itself; id number i of them has rank i + 1.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """One position to score: row ``place`` of the logits, the ``token_id`` chosen there, ``top`` likeliest ids to add.

    ``top``: 0 = none, -1 = the whole vocabulary; more than the vocabulary counts as all of it.
    """

    place: int
    token_id: int
    top: int = 0


@torch.inference_mode()
def capture_logprobs(logits: torch.Tensor, wanted: Sequence[Wanted]) -> list[TokenLogprobs]:
    """Score positions of ``logits`` [N, V]; one record per entry of ``wanted``, in its order.

    float32 and float64 logits are scored in their type, others in float32. Capturing changes no logit.
    """
    vocab = logits.shape[1]
    counts = [vocab if entry.top == WHOLE_VOCABULARY else min(entry.top, vocab) for entry in wanted]
    order = sorted(range(len(wanted)), key=counts.__getitem__)
    records: dict[int, TokenLogprobs] = {}
    size = max(1, SLICE_ELEMENTS // vocab)
    for start in range(0, len(order), size):
        part = order[start : start + size]
        scored = _score(logits, [wanted[i] for i in part], counts[part[-1]])
        for i, token_id, logprob, rank, ids, values in zip(part, *scored, strict=True):
            top = slice(counts[i])
            records[i] = TokenLogprobs(token_id, logprob, rank, tuple(ids[top]), tuple(values[top]))
    return [records[i] for i in range(len(wanted))]


class PromptLogprobs:
    """Log-probabilities of one prompt, gathered over prefill chunks in any division.

    The logits of position t score token t + 1. ``entries`` [prompt tokens]: ``None`` for the first token, which nothing
    predicts, and for tokens whose position has not been added.
    """

    def __init__(self, prompt_ids: Sequence[int], top: int) -> None:
        self._prompt_ids = tuple(prompt_ids)
        self._top = top
        self.entries: list[TokenLogprobs | None] = [None] * len(self._prompt_ids)

    @property
    def complete(self) -> bool:
        """Whether every token but the first is scored."""
        return None not in self.entries[1:]

    def add(self, start: int, logits: torch.Tensor) -> None:
        """Take the raw ``logits`` [n, V] of positions ``start`` .. ``start + n - 1``; the last one's are not needed."""
        scored = range(start, min(start + len(logits), len(self._prompt_ids) - 1))
        wanted = [Wanted(position - start, self._prompt_ids[position + 1], self._top) for position in scored]
        self.entries[start + 1 : start + 1 + len(wanted)] = capture_logprobs(logits, wanted)

    def add_hidden(self, start: int, hidden: torch.Tensor, project: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """:meth:`add` for ``hidden`` [n, H]: ``project`` gives the logits of a few positions at a time."""
        count = min(len(hidden), len(self._prompt_ids) - 1 - start)
        for first in range(0, count, PROJECTED_ROWS):
            self.add(start + first, project(hidden[first : min(first + PROJECTED_ROWS, count)]))


_Columns = tuple[list[int], list[float], list[int], list[list[int]], list[list[float]]]


def _score(logits: torch.Tensor, wanted: Sequence[Wanted], count: int) -> _Columns:
    """Ids, log-probabilities, ranks, top ids and top log-probabilities of a few positions, as lists."""
    device = logits.device
    part = logits[torch.tensor([entry.place for entry in wanted], dtype=torch.int64, device=device)]
    if part.dtype not in (torch.float32, torch.float64):
        part = part.float()
    tokens = torch.tensor([[entry.token_id] for entry in wanted], dtype=torch.int64, device=device)
    top = likeliest(part, count)
    values = log_softmax_at(part, torch.cat([tokens, top], dim=1)).tolist()
    return (
        [entry.token_id for entry in wanted],
        [row[0] for row in values],
        ranks(part, tokens).tolist(),
        top.tolist(),
        [row[1:] for row in values],
    )


def log_softmax_at(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-softmax of ``logits`` [M, V] at ``ids`` [M, n], in the type of the logits; no row sees the others."""
    if logits.device.type == "cpu":  # goes row by row, each on one thread
        return torch.log_softmax(logits, dim=-1).gather(1, ids)
    return log_softmax_by_units(logits, ids)


def log_softmax_by_units(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """:func:`log_softmax_at` by sums over integers, whose order cannot be seen. Sums are off by V * 2**-42 at most."""
    peak = logits.amax(-1, keepdim=True)
    units = (torch.exp(logits - peak).double() * _UNIT).long().sum(-1, keepdim=True)
    return (logits.gather(1, ids) - peak) - torch.log(units.double() / _UNIT).to(logits.dtype)


def ranks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Places [M] from 1 of ``tokens`` [M, 1] in the order of the module."""
    values = logits.gather(1, tokens)
    above = (logits > values).sum(-1)
    tied = (logits >= values).sum(-1) > above + 1
    if tied.any():
        ids = torch.arange(logits.shape[1], device=logits.device)
        above[tied] += ((logits[tied] == values[tied]) & (ids < tokens[tied])).sum(-1)
    return above + 1


def likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` ids [M, count] of each row of ``logits`` [M, V] in the order of the module."""
    if count == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    if count == logits.shape[1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices
    values, ids = _top_of_blocks(logits, count) if count * _BLOCK * 4 < logits.shape[1] else torch.topk(logits, count)
    least = values[:, -1:]
    tied = (logits >= least).sum(-1) > count
    if tied.any():
        ids[tied] = _lowest_of_ties(logits[tied], least[tied], count)
    ids = ids.sort(dim=-1).values
    order = torch.sort(logits.gather(1, ids), dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _top_of_blocks(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Top values and their ids [M, count]: they lie in the ``count`` blocks of largest maxima or behind all blocks."""
    vocab = logits.shape[1]
    whole = vocab - vocab % _BLOCK
    blocks = torch.topk(logits[:, :whole].reshape(len(logits), -1, _BLOCK).amax(-1), count).indices
    inner = torch.arange(_BLOCK, device=logits.device)
    ids = (blocks.unsqueeze(-1) * _BLOCK + inner).flatten(1)
    rest = torch.arange(whole, vocab, device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids, rest], dim=1)
    values, places = torch.topk(logits.gather(1, ids), count)
    return values, ids.gather(1, places)


def _lowest_of_ties(logits: torch.Tensor, least: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [M, count] above ``least`` [M, 1] and the lowest of those equal to it, where there are more than needed."""
    above, equal = logits > least, logits == least
    needed = count - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= needed))
    return keep.nonzero()[:, 1].view(len(logits), count)
