"""What the GPU benchmark is asked to measure. Loads nothing; needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import ConfigError

PARTS = {
    "bandwidth": "what the memory delivers at best",
    "forward": "one verify forward by rows and window width, as a graph: flatness, roofline, row invariance",
    "plain": "decoding without a drafter, end to end, by batch",
    "draft": "what a drafted token costs: rounds by depth",
    "table": "a device drafter at a fixed depth and a forced mean acceptance length, by batch",
    "idle": "share of a round in which the GPU waits, from the profiler",
    "grid": "adaptive depth against plain decoding, by batch and forced acceptance",
    "null": "a round of a model that costs nothing: the host's share",
    "peers": "transformers with a static cache, compiled",
}
"""Parts of the measurement and what they show, in the order in which they run."""
SLOW_PARTS = frozenset({"peers"})
"""Parts that run only when asked for."""


@dataclass(frozen=True)
class GpuSettings:
    """``batches``: streams decoded together. ``rates``: forced acceptance of one proposal, for the grid.
    ``length``: forced mean acceptance length of the table. ``tokens``: per stream, ``prompt_tokens`` before them.

    ``budget``: seconds after which no further part is started.
    """

    shape: str = "qwen3-8b"
    device: str = "cuda"
    dtype: str = "bfloat16"
    parts: tuple[str, ...] = tuple(name for name in PARTS if name not in SLOW_PARTS)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    rates: tuple[float, ...] = (0.0, 0.3, 0.6, 0.8, 0.95)
    depth: int = 4
    length: float = 3.0
    prompt_tokens: int = 128
    tokens: int = 192
    budget: float = 540.0
    seed: int = 0

    def check(self) -> None:
        """Raise :class:`ConfigError` naming the setting that cannot be honoured."""
        for name in self.parts:
            if name not in PARTS:
                raise ConfigError("parts", f"must be of {', '.join(PARTS)}, not {name!r}")
        if not self.batches or min(self.batches) < 1:
            raise ConfigError("grid", f"must list batches of at least one stream, not {self.batches}")
        if any(not 0.0 <= rate <= 1.0 for rate in self.rates) or not self.rates:
            raise ConfigError("forced", f"must list probabilities between 0 and 1, not {self.rates}")
        if self.depth < 1:
            raise ConfigError("spec_tokens", f"must be at least 1, not {self.depth}")
        if not 1.0 <= self.length <= self.depth + 1:
            raise ConfigError("length", f"must be between 1 and {self.depth + 1}, not {self.length}")
        if self.tokens < 8 * (self.depth + 1):
            raise ConfigError("max_tokens", f"must be at least {8 * (self.depth + 1)}, not {self.tokens}")

    def document(self) -> dict[str, Any]:
        return asdict(self)
