"""How much memory an engine will hold: weights, KV pool, transients. Planned before anything large is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..core.config import EngineConfig
from ..core.errors import ConfigError

if TYPE_CHECKING:
    from ..cache.groups import BlockGroupSpec

#: KV memory on the CPU when ``kv_cache_tokens`` is not set: this much, or a quarter of what is free if that is less.
CPU_KV_BUDGET = 1 << 30
#: Code that libraries generate for the shapes they meet, and slack of the allocator: measured with the demo model.
LIBRARY_BYTES = 96 << 20
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
    """Row and chunk limits in use: the configured ones, else the device's defaults of conventions.md."""

    rows: int
    chunk: int

    @classmethod
    def of(cls, config: EngineConfig, device: str) -> Limits:
        kind = device.split(":")[0]
        rows = config.scheduler.max_num_seqs or _DEFAULT_ROWS.get(kind, 64)
        return cls(rows, config.scheduler.max_num_batched_tokens or _DEFAULT_CHUNK.get(kind, 2048))


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose. ``base``: the process before the model; ``kv_tokens``: tokens the pool holds;
    ``num_blocks``: block group -> blocks including the scratch block."""

    base: int
    weights: int
    kv_cache: int
    transient: int
    kv_tokens: int
    num_blocks: dict[str, int]

    @property
    def total(self) -> int:
        return self.base + self.weights + self.kv_cache + self.transient

    def pool_tokens(self, block_size: int) -> int:
        """The longest sequence the pool can hold when a row has it to itself: whole blocks, scratch not counted."""
        return -(-self.kv_tokens // block_size) * block_size

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "total": self.total}


def plan_memory(facts: ModelFacts, config: EngineConfig, limits: Limits, depth: int, base: int) -> MemoryPlan:
    """Plan for one engine; ``base``: bytes the process holds without the model. Raises :class:`ConfigError` naming the
    setting that cannot fit."""
    block_size = config.cache.block_size
    per_token = sum(group.bytes_per_token(facts.kv_dtype_size) for group in facts.kv_groups)
    tokens = _kv_tokens(config, facts.max_model_len, limits.rows, per_token)
    num_blocks = {group.name: _blocks(group, tokens, limits, block_size, depth) for group in facts.kv_groups}
    kv_bytes = sum(
        num_blocks[group.name] * block_size * group.bytes_per_token(facts.kv_dtype_size) for group in facts.kv_groups
    )
    plan = MemoryPlan(
        base=base,
        weights=facts.weight_bytes,
        kv_cache=kv_bytes,
        transient=_transient(facts, limits, depth),
        kv_tokens=tokens,
        num_blocks=num_blocks,
    )
    free = available_bytes()
    if free is not None and plan.kv_cache + plan.transient > free:
        raise ConfigError(
            "kv_cache_tokens" if config.cache.kv_cache_tokens else "max_model_len",
            f"a KV pool of {tokens} tokens takes {plan.kv_cache / 1e9:.2f} GB{_shares(facts, plan, block_size)} but "
            f"{free / 1e9:.2f} GB are free; ask for less",
        )
    return plan


def _shares(facts: ModelFacts, plan: MemoryPlan, block_size: int) -> str:
    """What each block group takes of the pool, where there are several (a drafter's KV is one of them)."""
    if len(facts.kv_groups) < 2:
        return ""
    shares = []
    for group in facts.kv_groups:
        held = plan.num_blocks[group.name] * block_size * group.bytes_per_token(facts.kv_dtype_size)
        shares.append(f"{group.name} {held / 1e9:.2f}")
    return f" ({', '.join(shares)})"


def _kv_tokens(config: EngineConfig, max_model_len: int, rows: int, per_token: int) -> int:
    if config.cache.kv_cache_tokens is not None:
        return config.cache.kv_cache_tokens
    free = available_bytes()
    budget = CPU_KV_BUDGET if free is None else min(CPU_KV_BUDGET, free // 4)
    return min(rows * max_model_len, max(max_model_len, budget // per_token))


def _blocks(group: BlockGroupSpec, tokens: int, limits: Limits, block_size: int, depth: int) -> int:
    """Blocks of one group's pool. A sliding group never holds more than its window and one forward per row."""
    whole = -(-tokens // block_size)
    if group.window is not None:
        # a span that starts inside a block touches one block more; one more is taken before the oldest is freed
        per_row = group.blocks_for(tokens, block_size, group.window + max(limits.chunk, depth + 1)) + 1
        whole = min(whole + 2 * limits.rows, limits.rows * per_row)
    return whole + 1


def _transient(facts: ModelFacts, limits: Limits, depth: int) -> int:
    """Largest temporaries of one forward (activations of a prefill chunk, logits of the widest round twice), and what
    the libraries take for themselves."""
    activations = limits.chunk * (6 * facts.hidden_size + 3 * facts.intermediate_size) * max(4, facts.kv_dtype_size)
    logits = limits.rows * (depth + 1) * facts.vocab_size * 4 * 2
    return activations + logits + LIBRARY_BYTES


def resident_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not say."""
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
