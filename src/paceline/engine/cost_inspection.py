"""Measures the costs of the model and drafter that a configuration names, as the engine would at start, without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..cache.family import FamilyCache
from ..core.config import EngineConfig
from ..core.costs import CostTable
from ..models.artifact import ModelArtifact, open_artifact
from ..models.binding import TargetBinding, load_target
from ..models.tokenizer import load_tokenizer
from .build import _device_round, _tables, choose_drafter, model_facts, resolve_device, target_view
from .calibration import CostSubject, Progress, measured_costs
from .cost_cache import CostCache, CostKey
from .draws import RowSampler
from .memory import Limits, plan_memory, resident_bytes
from .state import EngineParts


@dataclass(frozen=True)
class Calibration:
    """A fresh table, what it was measured of, and whether it is kept for engines to come."""

    key: CostKey
    costs: CostTable
    drafter_reason: str
    kept: bool


def calibrate(config: EngineConfig, progress: Progress | None = None) -> Calibration:
    """Measure now, whatever is kept, and keep the result. Raises what building an engine would raise."""
    model = config.model
    device = resolve_device(model.device)
    if config.runtime.num_threads is not None:
        torch.set_num_threads(config.runtime.num_threads)
    artifact = open_artifact(model.model, model.revision, model.download_timeout, progress)
    base = resident_bytes(device)
    target = load_target(artifact, model.dtype, device, model.max_model_len)
    with _subject(config, artifact, target, (base, progress)) as (subject, reason):
        costs = measured_costs(subject, progress)
        key = subject.key(artifact.identity)
    return Calibration(key, costs, reason, CostCache().save(key, costs))


@contextmanager
def _subject(
    config: EngineConfig, artifact: ModelArtifact, target: TargetBinding, more: tuple[int, Progress | None]
) -> Iterator[tuple[CostSubject, str]]:
    """What an engine would measure, and why it would use this drafter."""
    base, progress = more
    limits = Limits.of(config, str(target.device))
    view = target_view(target, artifact.eos_ids(), _tokenizer(config, artifact))
    drafting = choose_drafter(config, view, None, progress)
    try:
        groups = (*target.kv_groups, *drafting.provider.kv_groups(view))
        facts = model_facts(target, groups, drafting.provider.weight_bytes)
        tables = _tables(config, target, groups, plan_memory(facts, config, limits, drafting.depth, base), limits)
        parts = EngineParts(
            target=target,
            tables=tables,
            cache=FamilyCache(tables),
            prefill_chunk=limits.chunk,
            depth=drafting.depth,
            device_round=_device_round(config, target),
        )
        runtime = config.runtime
        sampler = RowSampler(tables, runtime.draft_temperature, runtime.draft_filter, runtime.coupling)
        seen = replace(view, tables=tables)
        yield CostSubject(parts, drafting.provider, drafting.depth, seen, sampler, runtime.fill_span), drafting.reason
    finally:
        drafting.provider.close()


def _tokenizer(config: EngineConfig, artifact: ModelArtifact) -> Any:
    """Needed to compare a drafter's with it."""
    model = config.model
    if config.spec.model is None or model.skip_tokenizer_init:
        return None
    path = None if model.tokenizer is None else Path(model.tokenizer)
    return load_tokenizer(artifact, path, model.trust_remote_code)
