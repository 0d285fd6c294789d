"""The text of one row as the processors see it: prompt and used draws, seen from any position of a window."""

from __future__ import annotations

from collections.abc import Sequence


class RowHistory:
    """``tokens``: prompt + output, grown by used draws only. ``prompt_length``: where the output begins.

    Position p of a window sees ``tokens + proposals[:p]`` (spec 7.11); the methods say what stands there without
    joining the two lists.
    """

    __slots__ = ("prompt_length", "tokens")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.tokens = list(prompt_ids)
        self.prompt_length = len(self.tokens)

    def generated(self, place: int) -> int:
        """Output tokens before the draw at window position ``place``."""
        return len(self.tokens) - self.prompt_length + place

    def tail(self, proposals: Sequence[int], place: int, count: int) -> tuple[int, ...] | None:
        """The last ``count`` tokens before the draw at ``place``; ``None`` if there are not so many."""
        from_tokens = count - place
        if from_tokens <= 0:
            return tuple(proposals[place - count : place])
        if from_tokens > len(self.tokens):
            return None
        return (*self.tokens[len(self.tokens) - from_tokens :], *proposals[:place])

    def token_at(self, proposals: Sequence[int], index: int) -> int:
        """Token ``index`` of the text followed by ``proposals``."""
        known = len(self.tokens)
        return self.tokens[index] if index < known else proposals[index - known]
