"""A drafter on the host that always proposes something and never anything useful: its cost is that of the path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...draft.base import TokenDrafter


class HostGuesses(TokenDrafter):
    """Proposes the ids behind the newest one. Speeds come from forced acceptance, never from these."""

    id = "guesses"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, state: Any, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return [(tokens[-1] + place) % self._vocab_size for place in range(1, max_tokens + 1)]
