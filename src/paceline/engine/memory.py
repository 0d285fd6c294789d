"""How much memory an engine will hold: weights, KV pool, graphs, transients. Planned before the pool is allocated.

On the CPU this is the process's memory, on CUDA the device's; the plan counts the same things there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..core.config import EngineConfig
from ..core.errors import ConfigError
from .graph_runner import buckets_for

if TYPE_CHECKING:
    from ..cache.groups import BlockGroupSpec

#: KV memory on the CPU when ``kv_cache_tokens`` is not set: this much, or a quarter of what is free if that is less.
CPU_KV_BUDGET = 1 << 30
#: Code that libraries generate for the shapes they meet, and slack of the allocator: measured with the demo model.
LIBRARY_BYTES = 96 << 20
#: The same on CUDA: kernels as they are loaded, workspaces of the libraries, slack of the allocator.
CUDA_LIBRARY_BYTES = 512 << 20
#: Share of a GPU's memory that an engine may take when ``gpu_memory_utilization`` is not set.
GPU_SHARE = 0.9
#: What one captured graph keeps per layer of the model: its kernels' nodes and parameters.
GRAPH_LAYER_BYTES = 64 << 10
#: Graphs of one batch and depth: greedy rows only, and rows of any kind.
GRAPH_KINDS = 2
_DEFAULT_ROWS = {"cpu": 8}
_DEFAULT_CHUNK = {"cpu": 512}


@dataclass(frozen=True)
class ModelFacts:
    """What the plan needs to know of a model. Bytes and element counts; ``kv_groups`` as the binding declares them."""

    weight_bytes: int
    kv_groups: Sequence[BlockGroupSpec]
    kv_dtype_size: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True)
class Limits:
    """Row and chunk limits in use: the configured ones, else the device's defaults of conventions.md.

    ``device``: ``cpu``, ``cuda``, ``cuda:1`` ..., whose memory is planned."""

    rows: int
    chunk: int
    device: str = "cpu"

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @classmethod
    def of(cls, config: EngineConfig, device: str) -> Limits:
        kind = device.split(":")[0]
        rows = config.scheduler.max_num_seqs or _DEFAULT_ROWS.get(kind, 64)
        return cls(rows, config.scheduler.max_num_batched_tokens or _DEFAULT_CHUNK.get(kind, 2048), device)


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. ``base``: the process (on CUDA: what is in use on the device) before the model; ``graphs``:
    captured rounds; ``kv_tokens``: tokens the pool holds; ``num_blocks``: block group -> blocks including the scratch
    block."""

    base: int
    weights: int
    kv_cache: int
    transient: int
    kv_tokens: int
    num_blocks: dict[str, int]
    graphs: int = 0

    @property
    def total(self) -> int:
        return self.base + self.weights + self.kv_cache + self.transient + self.graphs

    def pool_tokens(self, block_size: int) -> int:
        """The longest sequence the pool can hold when a row has it to itself: whole blocks, scratch not counted."""
        return -(-self.kv_tokens // block_size) * block_size

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "total": self.total}


def plan_memory(facts: ModelFacts, config: EngineConfig, limits: Limits, depth: int, base: int) -> MemoryPlan:
    """Plan for one engine; ``base``: bytes in use without the model. Raises :class:`ConfigError` naming the setting
    that cannot fit."""
    block_size = config.cache.block_size
    transient = _transient(facts, limits, depth)
    graphs = _graphs(facts, config, limits, depth)
    room = _room(config, limits, base + facts.weight_bytes)
    if limits.on_cuda:  # whatever else came onto the device meanwhile
        in_use = device_bytes(limits.device)[0] - spare_bytes(limits.device)
        base = max(base, in_use - facts.weight_bytes)
    pool = _Pool(facts, limits, block_size, depth)
    tokens = _kv_tokens(config, pool, None if room is None else room - transient - graphs)
    num_blocks, kv_bytes = pool.blocks(tokens), pool.nbytes(tokens)
    plan = MemoryPlan(base, facts.weight_bytes, kv_bytes, transient, tokens, num_blocks, graphs)
    if room is not None and kv_bytes + transient + graphs > room:
        raise ConfigError(
            "kv_cache_tokens" if config.cache.kv_cache_tokens else "max_model_len",
            f"a KV pool of {tokens} tokens takes {kv_bytes / 1e9:.2f} GB{_shares(facts, plan, block_size)} but "
            f"{max(0, room - transient - graphs) / 1e9:.2f} GB are free; ask for less",
        )
    return plan


def _room(config: EngineConfig, limits: Limits, held: int) -> int | None:
    """Bytes that pool, graphs and temporaries may take; ``None`` if the system does not say. ``held``: base and
    weights, which on the CPU are no longer free."""
    share = config.cache.gpu_memory_utilization
    if not limits.on_cuda:
        if share is not None:
            raise ConfigError("gpu_memory_utilization", f"is for CUDA; on {limits.device} set kv_cache_tokens")
        return available_bytes()
    in_use, total = device_bytes(limits.device)
    return int((GPU_SHARE if share is None else share) * total) - max(held, in_use)


def _shares(facts: ModelFacts, plan: MemoryPlan, block_size: int) -> str:
    """What each block group takes of the pool, where there are several (a drafter's KV is one of them)."""
    if len(facts.kv_groups) < 2:
        return ""
    shares = []
    for group in facts.kv_groups:
        held = plan.num_blocks[group.name] * block_size * group.bytes_per_token(facts.kv_dtype_size)
        shares.append(f"{group.name} {held / 1e9:.2f}")
    return f" ({', '.join(shares)})"


def _kv_tokens(config: EngineConfig, pool: _Pool, room: int | None) -> int:
    """Tokens of the pool: as configured, else what fits, but no more than all rows can use and no less than one can.

    ``room``: bytes that the pool may take; on the CPU a quarter of them at most, and :data:`CPU_KV_BUDGET`.
    """
    if config.cache.kv_cache_tokens is not None:
        return config.cache.kv_cache_tokens
    longest, rows = pool.facts.max_model_len, pool.limits.rows
    if pool.limits.on_cuda:
        fitting = pool.largest(max(0, room or 0), rows * longest)
    else:
        free = available_bytes()
        fitting = (CPU_KV_BUDGET if free is None else min(CPU_KV_BUDGET, free // 4)) // pool.per_token
    return min(rows * longest, max(longest, fitting))


@dataclass(frozen=True)
class _Pool:
    """Sizes of a KV pool by the tokens it holds."""

    facts: ModelFacts
    limits: Limits
    block_size: int
    depth: int

    @property
    def per_token(self) -> int:
        return sum(group.bytes_per_token(self.facts.kv_dtype_size) for group in self.facts.kv_groups)

    def blocks(self, tokens: int) -> dict[str, int]:
        """Blocks per group, the scratch block included."""
        return {group.name: self._of(group, tokens) for group in self.facts.kv_groups}

    def nbytes(self, tokens: int) -> int:
        size = self.facts.kv_dtype_size
        groups = self.facts.kv_groups
        return sum(self._of(group, tokens) * self.block_size * group.bytes_per_token(size) for group in groups)

    def largest(self, room: int, most: int) -> int:
        """Most tokens, in whole blocks and at most ``most``, whose pool takes at most ``room`` bytes."""
        low, high = 0, -(-most // self.block_size)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.nbytes(middle * self.block_size) <= room else (low, middle - 1)
        return low * self.block_size

    def _of(self, group: BlockGroupSpec, tokens: int) -> int:
        """A sliding group never holds more than its window and one forward per row."""
        whole = -(-tokens // self.block_size)
        if group.window is not None:
            # a span that starts inside a block touches one block more; one more is taken before the oldest is freed
            span = group.window + max(self.limits.chunk, self.depth + 1)
            per_row = group.blocks_for(tokens, self.block_size, span) + 1
            whole = min(whole + 2 * self.limits.rows, self.limits.rows * per_row)
        return whole + 1


def _transient(facts: ModelFacts, limits: Limits, depth: int) -> int:
    """Largest temporaries of one forward (activations of a prefill chunk, logits of the widest round twice), and what
    the libraries take for themselves."""
    activations = limits.chunk * (6 * facts.hidden_size + 3 * facts.intermediate_size) * max(4, facts.kv_dtype_size)
    logits = limits.rows * (depth + 1) * facts.vocab_size * 4 * 2
    return activations + logits + (CUDA_LIBRARY_BYTES if limits.on_cuda else LIBRARY_BYTES)


def _graphs(facts: ModelFacts, config: EngineConfig, limits: Limits, depth: int) -> int:
    """Captured rounds: what each keeps for its kernels, and one set of temporaries of the widest, which they share."""
    if not limits.on_cuda or config.runtime.device_round is False:
        return 0
    count = len(buckets_for(limits.rows)) * (depth + 1) * GRAPH_KINDS
    layers = sum(len(group.layers) for group in facts.kv_groups)
    positions = limits.rows * (depth + 1)
    widest = positions * (2 * facts.vocab_size * 4 + (6 * facts.hidden_size + 3 * facts.intermediate_size) * 4)
    return count * layers * GRAPH_LAYER_BYTES + widest


def device_bytes(device: str) -> tuple[int, int]:
    """Bytes in use on a CUDA device by anybody, and all it has."""
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free, total


def spare_bytes(device: str) -> int:
    """Bytes that torch holds on a CUDA device without using them: gaps left by loading, which the pool fills again."""
    import torch

    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def resident_bytes(device: str = "cpu") -> int:
    """Resident memory of this process now; 0 where the system does not say. On CUDA: bytes in use on the device."""
    if device.startswith("cuda"):
        return device_bytes(device)[0]
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available_bytes() -> int | None:
    """Memory that can still be had without swapping; ``None`` where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
