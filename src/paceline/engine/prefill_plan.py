"""How a prompt is cut into prefill steps (spec 4.7, 4.9). A row's plan depends on that row alone, never on others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .state import PrefillStep

_NO_BOUNDARY = -1


@dataclass(frozen=True)
class PrefillSpan:
    """What one row's prefill covers: positions ``cached`` to ``end`` in chunks of at most ``chunk``, with a checkpoint
    at ``boundary`` (-1 = none)."""

    cached: int
    end: int
    chunk: int
    boundary: int = _NO_BOUNDARY

    @classmethod
    def of_prompt(cls, prompt_tokens: int, chunk: int, *, tail_split: bool, cached: int = 0) -> PrefillSpan:
        """Span of a prompt that no cache keeps; see :meth:`kept` for one that it does."""
        end = prompt_tokens - (1 if tail_split and prompt_tokens > 1 else 0)
        return cls(cached, end, chunk)

    def kept(self, prompt_tokens: int, checkpoint_at: int | None) -> PrefillSpan:
        """The same span with the boundary checkpoint of a request that the cache keeps."""
        boundary = min(prompt_tokens if checkpoint_at is None else checkpoint_at, prompt_tokens - 1)
        return PrefillSpan(self.cached, self.end, self.chunk, boundary)

    def step_at(self, position: int) -> PrefillStep:
        """The step that starts at ``position``; empty and final if the prompt is already covered."""
        limit = min(self.end, self.boundary) if self.boundary > position else self.end
        end = min(position + self.chunk, limit)
        saves = end == self.boundary and self.boundary > self.cached and end > position
        return PrefillStep(position, end, final=end == self.end, saves=saves)

    def steps(self) -> Iterator[PrefillStep]:
        """All steps in order; exactly the last one is final."""
        position = self.cached
        while True:
            step = self.step_at(position)
            yield step
            if step.final:
                return
            position = step.end
