"""The KV memory itself: per layer one flat key and one flat value tensor, addressed by slot.

It knows groups and shapes, not which row a block belongs to. Slot = block id * block size + offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .groups import BlockGroupSpec, LayerKV


class KVStore:
    """Keys [S, kv_heads, key_dim] and values [S, kv_heads, value_dim] of every layer, S = num_blocks * block_size of
    the layer's group. All of it is written at construction, so that resident memory is what ``nbytes`` says and a
    slot never written holds zeros."""

    def __init__(
        self,
        groups: Sequence[BlockGroupSpec],
        num_blocks: Mapping[str, int],
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.dtype = dtype
        self.device = torch.device(device)
        self.groups = {group.name: group for group in groups}
        self.num_blocks = {name: num_blocks[name] for name in self.groups}
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        for group in groups:
            for layer in group.layers:
                self._add_layer(layer, self.num_blocks[group.name] * block_size)

    def _add_layer(self, layer: LayerKV, slots: int) -> None:
        if layer.layer in self._keys:
            raise ValueError(f"layer {layer.layer} stands twice in the block groups; layer numbers must be unique")
        for tensors, width in ((self._keys, layer.key_dim), (self._values, layer.value_dim)):
            # zero_() writes the pages; torch.zeros would leave them to be mapped at first use
            memory = torch.empty(slots, layer.kv_heads, width, dtype=self.dtype, device=self.device)
            tensors[layer.layer] = memory.zero_()

    def keys(self, layer: int) -> torch.Tensor:
        """Keys of ``layer`` [S, kv_heads, key_dim], the memory itself."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """Values of ``layer`` [S, kv_heads, value_dim], the memory itself."""
        return self._values[layer]

    def tensors(self, group: str) -> list[torch.Tensor]:
        """Keys and values of every layer of ``group``: layer 0 keys, layer 0 values, layer 1 keys, ..."""
        layers = self.groups[group].layers
        return [tensors[layer.layer] for layer in layers for tensors in (self._keys, self._values)]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.numel() * t.element_size() for kv in (self._keys, self._values) for t in kv.values())

    def copy_block(self, group: str, src: int, dst: int) -> None:
        """Copy block ``src`` to block ``dst`` in every layer of ``group``."""
        size = self.block_size
        for memory in self.tensors(group):
            memory[dst * size : (dst + 1) * size].copy_(memory[src * size : (src + 1) * size])

    def clear_blocks(self, group: str, blocks: Sequence[int]) -> None:
        """Write zeros to ``blocks`` in every layer of ``group`` (values that are not finite must not outlive a row)."""
        size = self.block_size
        for memory in self.tensors(group):
            for block in blocks:
                memory[block * size : (block + 1) * size].zero_()
