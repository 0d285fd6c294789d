"""A toy target without layers: its logits are a fixed pseudo-random function of every token it finds in the KV cache.

One wrong slot, block, length or rollback changes what follows, and a forward takes microseconds. It implements the
port of ``paceline.models.binding.TargetBinding`` that the engine uses. Legend: N flat tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..cache.groups import BlockGroupSpec, LayerKV
from ..cache.store import KVStore
from ..core.batch import ForwardBatch, ForwardResult
from .reference import PlainDecoder

_GROUP = "full"
_PRIME = 2**31 - 1
_LOCAL_ROWS, _GLOBAL_ROWS = 499, 4093
_HIDDEN = 5


@dataclass(frozen=True)
class ToySpec:
    """``local``: weight of what the last two tokens say (makes loops), ``distant``: of the whole text."""

    vocab_size: int = 64
    max_model_len: int = 256
    seed: int = 0
    local: float = 4.0
    distant: float = 1.0
    tail_split: bool = False


class ToyTarget:
    """The target. ``before`` is called with "forward" or "logits" at the start of each such call and may raise;
    ``poison`` holds (first token of the text, position): there the logits are NaN."""

    exactness = "bitwise"
    row_invariant = chunk_invariant = True
    records = 2
    hidden_size, num_layers, weight_bytes = _HIDDEN, 1, 0
    kv_dtype = torch.float64
    dtype = "float64"
    config = SimpleNamespace(family="toy", intermediate_size=1)

    def __init__(self, spec: ToySpec | None = None) -> None:
        self.spec = spec or ToySpec()
        self.vocab_size = self.spec.vocab_size
        self.max_model_len = self.spec.max_model_len
        self.tail_split = self.spec.tail_split
        self.device = torch.device("cpu")
        self.kv_groups = (BlockGroupSpec(_GROUP, (LayerKV(0, 1, 2, 1),)),)
        self.before: Callable[[str], None] | None = None
        self.poison: set[tuple[int, int]] = set()
        self.forwards = 0
        chance = np.random.default_rng(self.spec.seed)
        self._local = chance.standard_normal((_LOCAL_ROWS, self.vocab_size)) * self.spec.local
        self._global = chance.standard_normal((_GLOBAL_ROWS, self.vocab_size)) * self.spec.distant
        self._store: KVStore | None = None

    def attach(self, store: KVStore) -> None:
        self._store = store

    def supports_taps(self, layers: Sequence[int]) -> bool:
        return all(layer == 0 for layer in layers)

    def forward(self, batch: ForwardBatch, taps: Sequence[int] = ()) -> ForwardResult:
        """Write the new tokens and their positions into the cache, then describe each position by what lies there."""
        self._call("forward")
        self.forwards += 1
        assert self._store is not None, "attach a store first"
        keys = self._store.keys(0)
        keys[batch.slots[_GROUP], 0] = torch.stack([batch.tokens, batch.positions], dim=1).to(self.kv_dtype)
        found = []
        for row, (context, count) in enumerate(zip(batch.context_lens, batch.query_lens, strict=True)):
            table = batch.block_tables[_GROUP][row]
            places = torch.arange(context + count)
            slots = table[places // self._store.block_size] * self._store.block_size + places % self._store.block_size
            cells = keys[slots, 0].numpy()
            found.append(_describe(cells[:, 0], cells[:, 1])[context:])
        hidden = torch.from_numpy(np.concatenate(found))
        return ForwardResult(hidden, torch.cat([hidden] * len(taps), dim=1) if taps else None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, V] float64 of described positions [M, 5]."""
        self._call("logits")
        rows = self._logits(hidden.numpy())
        for place, (*_, first, position) in enumerate(hidden.tolist()):
            if (int(first), int(position)) in self.poison:
                rows[place] = np.nan
        return torch.from_numpy(rows)

    def decoder(self, eos_ids: Sequence[int] = ()) -> PlainDecoder:
        """Plain decoding with the same function, straight from the tokens: no cache is involved."""
        return PlainDecoder(self.next_logits, eos_ids, self.max_model_len, self.vocab_size)

    def next_logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Logits [V] of the token after ``tokens``."""
        described = _describe(np.asarray(tokens, dtype=np.float64), np.arange(len(tokens), dtype=np.float64))
        return np.asarray(self._logits(described[-1:])[0], dtype=np.float64)

    def _logits(self, hidden: NDArray[Any]) -> NDArray[np.float64]:
        digest, last, previous = (hidden[:, column].astype(np.int64) for column in range(3))
        local = self._local[(last * 31 + previous * 17) % _LOCAL_ROWS]
        return np.asarray(local + self._global[digest % _GLOBAL_ROWS], dtype=np.float64)

    def _call(self, method: str) -> None:
        if self.before is not None:
            self.before(method)


def _describe(tokens: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float64]:
    """Per position [L, 5]: digest of all tokens and positions up to it, the last two tokens, the first, its index."""
    length = len(tokens)
    powers = np.array([pow(48271, place + 1, _PRIME) for place in range(length)], dtype=np.int64)
    terms = (tokens.astype(np.int64) * 8191 + positions.astype(np.int64) * 131 + 1) % _PRIME % (1 << 31)
    digests = np.cumsum(terms * powers % _PRIME) % _PRIME
    previous = np.concatenate([[0.0], tokens[:-1]])
    first = np.full(length, tokens[0])
    return np.stack([digests, tokens, previous, first, np.arange(length)], axis=1).astype(np.float64)
