"""Which layers keep their KV together: a block group is a set of layers with the same retention and block bytes.

Records only. It knows no pool, no row and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerKV:
    """Shape of one attention layer's KV. ``layer`` is unique over all groups of a store; key and value widths
    (``key_dim``, ``value_dim``, per head) may differ."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one token in this layer."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True)
class BlockGroupSpec:
    """Layers that share one block table. ``window``: how many positions a query sees, its own included; ``None`` = all
    (nothing is ever freed behind)."""

    name: str
    layers: tuple[LayerKV, ...]
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"block group {self.name!r}: window must be at least 1, not {self.window}")

    def bytes_per_token(self, dtype_size: int) -> int:
        """Bytes that one token takes in all layers of the group; ``dtype_size`` in bytes per element."""
        return dtype_size * sum(layer.elements_per_token for layer in self.layers)

    def first_visible(self, length: int) -> int:
        """First position that a query at position ``length`` attends to."""
        return 0 if self.window is None else max(0, length - self.window + 1)

    def blocks_for(self, tokens: int, block_size: int, span: int | None = None) -> int:
        """Blocks that a row of ``tokens`` positions holds at once; ``span`` bounds what a sliding group keeps."""
        whole = blocks_spanning(tokens, block_size)
        if self.window is None or span is None:
            return whole
        # a span that starts at the end of a block reaches into one block more than its length says
        return min(whole, blocks_spanning(max(span - 1, 0), block_size) + 1)


def blocks_spanning(tokens: int, block_size: int) -> int:
    """Blocks that hold positions ``0 .. tokens - 1``."""
    return -(-tokens // block_size)
