"""Whether two models mean the same by a token id, and how many ids they share. Knows tokenizers, not weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import DraftError


@dataclass(frozen=True)
class Vocabulary:
    """One model's ids. ``head``: logits it gives, often more than it has tokens (padding). ``pieces``: id -> string of
    its tokenizer, ``None`` where only ids are used. ``added``: ids put on top of the tokenizer's trained vocabulary."""

    head: int
    pieces: Mapping[int, str] | None = None
    added: frozenset[int] = frozenset()

    @classmethod
    def of(cls, head: int, tokenizer: Any | None) -> Vocabulary:
        """The vocabulary of a model with ``head`` logits and a ``transformers`` tokenizer (or none)."""
        if tokenizer is None:
            return cls(head)
        pieces = {number: piece for piece, number in tokenizer.get_vocab().items() if piece != f"[PAD{number}]"}
        return cls(head, pieces, frozenset(tokenizer.get_added_vocab().values()))

    @property
    def size(self) -> str:
        tokens = "unknown" if self.pieces is None else str(len(self.pieces))
        return f"{tokens} tokens in {self.head} logits"


def common_ids(target: Vocabulary, drafter: Vocabulary, name: str) -> int:
    """How many ids, from 0 on, both models can draw. ``name`` is what the drafter is called in errors.

    The tokenizers must agree on every id that both heads have; beyond that only tokens added later may stand (padding
    has no string). Raises :class:`DraftError` with the first id that differs and both strings. Without a tokenizer
    on either side nothing can be compared, and only heads of one size are taken for equal.
    """
    shared = min(target.head, drafter.head)
    sizes = f"the target's vocabulary has {target.size}, the drafter's {drafter.size}"
    if target.pieces is None or drafter.pieces is None:
        if target.head != drafter.head:
            raise DraftError(f"drafter {name}: its tokenizer cannot be compared with the target's, and {sizes}")
        return shared
    known = sorted(target.pieces.keys() | drafter.pieces.keys())
    for number in (*(i for i in known if i < shared), *_trained(target, shared), *_trained(drafter, shared)):
        ours, theirs = target.pieces.get(number), drafter.pieces.get(number)
        if ours != theirs:
            raise DraftError(
                f"drafter {name}: its tokenizer is not the target's: token {number} is {_shown(ours)} for the target "
                f"and {_shown(theirs)} for the drafter ({sizes}); choose a drafter of the same model family"
            )
    return shared


def _trained(vocabulary: Vocabulary, first: int) -> Iterable[int]:
    """Ids from ``first`` on that belong to the tokenizer itself, ascending."""
    return sorted(i for i in vocabulary.pieces or () if i >= first and i not in vocabulary.added)


def _shown(piece: str | None) -> str:
    return "no token" if piece is None else repr(piece)
