"""What the parts of the measurement share: the target, its bytes, the bandwidth, and engines over it.

One target serves one engine at a time; an engine is opened, measured and closed.
"""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ...cache.store import KVStore
from ...core.config import EngineConfig
from ...core.request import SamplingParams
from ...draft.base import DraftProvider, NullDrafter
from ...draft.kinds.eagle3 import Eagle3Drafter, random_eagle3
from ...engine.build import Extras, assemble, target_view
from ...engine.capture import GREEDY
from ...engine.engine import Engine
from ...kernels.backend import TORCH_DTYPES
from ...models.binding import TargetBinding
from ...models.random import random_target
from ...sampling.forced import CoinAcceptance, rate_for
from .guesses import HostGuesses
from .roofline import Bandwidth, StepBytes, measure_bandwidth, step_bytes
from .settings import GpuSettings
from .timing import forget_peak, on_cuda

DRAFT_HEAD_ROWS = 32_000
"""Rows of the output head of the random drafter: the frequent tokens."""


BLOCK_SIZE = 16
"""Positions of a KV block where no engine chooses."""

EngineKind = Literal["plain", "fixed", "adaptive", "host"]
"""Engines by what drafts: nothing, the device drafter at a fixed depth or at one that the gate chooses, the host."""


def detach(target: TargetBinding) -> None:
    """Let the target go of its store, which it would hold until it gets another."""
    least = {group.name: 1 for group in target.kv_groups}
    target.attach(KVStore(target.kv_groups, least, BLOCK_SIZE, target.kv_dtype, target.device))


@dataclass
class Rig:
    """Loaded once per run. ``bandwidth``, ``target`` and ``forced`` are made when they are first needed. ``plain_ms``:
    batch -> milliseconds a token without a drafter, as far as they were measured."""

    settings: GpuSettings
    plain_ms: dict[int, float] = field(default_factory=dict, init=False)
    _open: tuple[EngineKind, Engine] | None = field(default=None, init=False)

    @cached_property
    def bandwidth(self) -> Bandwidth:
        nbytes = {} if on_cuda(self.settings.device) else {"nbytes": 64 << 20}
        return measure_bandwidth(self.settings.device, **nbytes)

    @cached_property
    def target(self) -> TargetBinding:
        settings = self.settings
        return random_target(settings.shape, settings.dtype, settings.device, self.max_model_len)

    @property
    def max_model_len(self) -> int:
        """Room for the longest stream, in whole blocks."""
        return -(-(self.settings.prompt_tokens + self.settings.tokens + 64) // 64) * 64

    @cached_property
    def forced(self) -> CoinAcceptance:
        """The coin of all engines that draft; parts set its rate."""
        return CoinAcceptance(rate_for(self.settings.length, self.settings.depth), self.settings.device)

    @cached_property
    def step(self) -> StepBytes:
        size = TORCH_DTYPES[self.settings.dtype].itemsize
        return step_bytes(self.target.config, 1 if self.settings.dtype == "int8" else size, size)

    def floor_ms(self, rows: int, context: int) -> float:
        """What reading takes at least for one step of ``rows`` rows."""
        return self.step.floor_ms(self.bandwidth, rows, context)

    def prompts(self, rows: int) -> list[list[int]]:
        """Random ids, different for every row."""
        generator = random.Random(self.settings.seed)
        top = self.target.vocab_size - 1
        return [[generator.randint(0, top) for _ in range(self.settings.prompt_tokens)] for _ in range(rows)]

    def params(self, speculative: bool = True, depth: int | None = None) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.settings.tokens,
            temperature=0.0,
            ignore_eos=True,
            speculative=speculative,
            num_draft_tokens=depth,
        )

    def engine(self, kind: EngineKind) -> Engine:
        """An engine over the target; the one before stays open until another kind is asked for, since opening one
        captures its rounds."""
        if self._open is None or self._open[0] != kind:
            self.close()
            self._open = kind, self._assemble(kind)
        return self._open[1]

    def close(self) -> None:
        """Close the engine that is open. Idempotent."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
            detach(self.target)
            gc.collect()  # before the next one plans its memory

    def _assemble(self, kind: EngineKind) -> Engine:
        settings = self.settings
        most = max(settings.batches)
        config = EngineConfig.build(
            device=settings.device,
            dtype=settings.dtype,
            max_num_seqs=most,
            max_num_batched_tokens=max(2048, settings.prompt_tokens),
            kv_cache_tokens=most * self.max_model_len,
            spec_tokens=0 if kind == "plain" else settings.depth,
            spec_adaptive=kind == "adaptive",
            device_round=True,
            fill_span=0,
        )
        extras = Extras(forced=None if kind == "plain" else self.forced, flavors=(GREEDY,))
        drafter = self._drafter(kind)
        forget_peak(settings.device)
        return assemble(config, self.target, (), drafter=drafter, extras=extras)

    def _drafter(self, kind: EngineKind) -> DraftProvider:
        if kind == "plain":
            return NullDrafter()
        return HostGuesses(self.target.vocab_size) if kind == "host" else self.device_drafter()

    def device_drafter(self) -> Eagle3Drafter:
        """A chain drafter with random weights in the target's widths that drafts on the device."""
        view = target_view(self.target, (), None)
        return random_eagle3(view, listed=min(DRAFT_HEAD_ROWS, self.target.vocab_size), seed=self.settings.seed)
