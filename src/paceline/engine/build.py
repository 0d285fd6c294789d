"""From configuration to a running engine: target, drafter, pools, scheduler, thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..cache.family import FamilyCache
from ..cache.groups import BlockGroupSpec
from ..cache.pool import BlockPool
from ..cache.store import KVStore
from ..cache.tables import RowTables
from ..core.config import EngineConfig
from ..core.costs import CostTable
from ..core.errors import ConfigError, DraftError
from ..core.stats import EngineStats
from ..draft.base import DraftProvider, NullDrafter, TargetView
from ..gate.adaptive import AdaptiveGate
from ..grammar.compiler import GrammarCompiler
from .admission import Door
from .binder import GroupBinding, bind_speculative_group
from .calibration import CostSubject, costs_for, kept_costs
from .capture import FLAVORS, LauncherFactory
from .draws import Flavor, RowSampler
from .engine import Engine
from .graph_backend import GraphBackend
from .group import GroupTools
from .ledger import RoundLedger
from .memory import Limits, MemoryPlan, ModelFacts, plan_memory, resident_bytes
from .options import OptionResolver
from .phases import phase_clock
from .preemption import RamTier
from .scheduler import Scheduler
from .state import EngineParts, ForcedAcceptance

if TYPE_CHECKING:
    from ..models.artifact import ModelArtifact, Progress
    from ..models.binding import TargetBinding


@dataclass(frozen=True)
class Drafting:
    """The drafter in use: provider, largest depth, and why it was chosen."""

    provider: DraftProvider
    depth: int
    reason: str


@dataclass(frozen=True)
class Extras:
    """What an engine may be given beside its target. ``progress`` hears of slow steps; ``base``: bytes that the process
    held before the target was loaded; ``identity``: the artifact's name@revision, under which measured costs are kept
    on disk (``None`` = measure and keep nothing); ``costs``: used in place of measured ones; ``forced``: benchmarks
    only; ``graphs``: record device rounds with this instead of the device's own graphs; ``flavors``: kinds of rows that
    rounds are captured for, where not all can come."""

    progress: Progress | None = None
    base: int = 0
    identity: str | None = None
    costs: CostTable | None = None
    forced: ForcedAcceptance | None = None
    graphs: GraphBackend | None = None
    flavors: Sequence[Flavor] = FLAVORS


def build_engine(config: EngineConfig, drafter: DraftProvider | None, progress: Progress | None) -> Engine:
    """Load the target and the drafter that ``config`` names and start the engine.

    Raises :class:`ConfigError`, :class:`ModelError` or :class:`DraftError`; nothing is left running then.
    """
    from ..kernels.backend import resolve_dtype
    from ..models.artifact import open_artifact
    from ..models.binding import load_target
    from ..models.tokenizer import load_tokenizer

    if config.runtime.num_threads is not None:
        torch.set_num_threads(config.runtime.num_threads)
    device = resolve_device(config.model.device)
    model = config.model
    artifact = open_artifact(model.model, model.revision, model.download_timeout, progress)
    tokenizer = None
    if not model.skip_tokenizer_init:
        path = None if model.tokenizer is None else Path(model.tokenizer)
        tokenizer = load_tokenizer(artifact, path, model.trust_remote_code)
    dtype, reason = resolve_dtype(model.dtype, device)
    base = resident_bytes(device)
    target = load_target(artifact, dtype, device, model.max_model_len)
    extras = Extras(progress, base, artifact.identity)
    engine = assemble(config, target, artifact.eos_ids(), drafter=drafter, tokenizer=tokenizer, extras=extras)
    engine.add_info(dtype_reason=reason, identity=artifact.identity)
    engine.default_params = _sampling_defaults(artifact, model.generation_config)
    return engine


def assemble(
    config: EngineConfig,
    target: TargetBinding,
    eos_ids: tuple[int, ...],
    *,
    drafter: DraftProvider | None = None,
    tokenizer: Any = None,
    extras: Extras | None = None,
) -> Engine:
    """An engine over a loaded target: memory plan, pools, tables, drafter, costs, scheduler, thread."""
    extras = extras or Extras()
    limits = Limits.of(config, str(target.device))
    view = target_view(target, eos_ids, tokenizer)
    drafting = choose_drafter(config, view, drafter, extras.progress)
    groups = (*target.kv_groups, *drafting.provider.kv_groups(view))
    facts = model_facts(target, groups, drafting.provider.weight_bytes)
    plan = plan_memory(facts, config, limits, drafting.depth, extras.base)
    graphs = extras.graphs is not None or (target.device.type == "cuda" and _device_round(config, target))
    tables = _tables(config, target, groups, (plan, limits.rows + graphs))
    padding = tables.take_padding() if graphs else None
    launchers = LauncherFactory(padding, config.runtime.fill_span, extras.progress, extras.flavors, extras.graphs)
    families = FamilyCache(tables)
    parts = EngineParts(
        target=target,
        tables=tables,
        cache=families,
        prefill_chunk=limits.chunk,
        depth=drafting.depth,
        device_round=_device_round(config, target),
        run_ahead=config.runtime.run_ahead,
        forced=extras.forced,
    )
    binding = _binding(config, parts, drafting, (replace(view, tables=tables), launchers), extras)
    bind = bind_speculative_group(binding)
    if bind is None:
        taps = drafting.provider.target_taps(view)
        raise DraftError(f"drafter {drafting.provider.id!r} reads layers {taps}, which this target cannot give")
    tools = binding.tools
    scheduler = Scheduler(parts, bind, tools.stats, tools.ram, families)
    with torch.inference_mode():
        scheduler.open_group()
    door = Door(
        vocab_size=target.vocab_size,
        max_model_len=target.max_model_len,
        pool_tokens=plan.pool_tokens(config.cache.block_size),
        eos_ids=eos_ids,
        depth=drafting.depth,
        options=OptionResolver(tokenizer, target.vocab_size),
        seed=config.runtime.seed,
    )
    info = _info(config, target, drafting, plan, limits) | {"graphs": _captured(launchers)}
    compiler = None if tokenizer is None else GrammarCompiler(tokenizer, target.vocab_size, eos_ids)
    engine = Engine(scheduler, door, tools.stats, info=info, tokenizer=tokenizer, compiler=compiler)
    engine.config = config
    return engine


def _binding(
    config: EngineConfig,
    parts: EngineParts,
    drafting: Drafting,
    seen: tuple[TargetView, LauncherFactory],
    extras: Extras,
) -> GroupBinding:
    """What groups are opened with: sampler, figures, costs, gate. ``seen``: the view with tables, and who launches."""
    view, launchers = seen
    runtime, stats = config.runtime, EngineStats()
    sampler = RowSampler(parts.tables, runtime.draft_temperature, runtime.draft_filter, runtime.coupling)
    subject = CostSubject(parts, drafting.provider, drafting.depth, view, sampler, runtime.fill_span, launchers.probing)
    costs = _costs(config, subject, extras)
    known = costs or (kept_costs(subject, extras.identity) if drafting.depth else None)
    tools = GroupTools(
        parts,
        sampler,
        stats,
        RamTier(runtime.preempt_ram_bytes),
        clock=phase_clock(runtime, parts.target, stats),
        make_ledger=None if known is None else partial(RoundLedger, known, stats),
        make_launcher=launchers,
    )
    return GroupBinding(
        tools,
        drafting.provider,
        drafting.depth,
        view,
        make_gate=None if costs is None else partial(AdaptiveGate, costs, drafting.depth),
        fill_span=runtime.fill_span,
    )


def _captured(launchers: LauncherFactory) -> dict[str, Any]:
    """What was recorded, as plain JSON."""
    report = launchers.report
    failures = {str(shape): reason for shape, reason in report.failures.items()}
    return {"captured": report.captured, "bytes": report.held, "failures": failures}


def _costs(config: EngineConfig, subject: CostSubject, extras: Extras) -> CostTable | None:
    """What the depth is chosen by; ``None`` where nothing is chosen."""
    if not config.spec.adaptive or subject.depth == 0:
        return None
    if extras.costs is not None:
        return extras.costs
    return costs_for(subject, extras.identity, extras.progress)


def target_view(target: TargetBinding, eos_ids: tuple[int, ...], tokenizer: Any) -> TargetView:
    """What drafters may know of a loaded target."""
    return TargetView(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_layers=target.num_layers,
        max_model_len=target.max_model_len,
        eos_ids=eos_ids,
        device=str(target.device),
        dtype=target.dtype,
        tokenizer=tokenizer,
    )


def _device_round(config: EngineConfig, target: TargetBinding) -> bool:
    """On the CPU the host walk is cheaper than a dozen small tensor operations. Phases are timed in it everywhere."""
    if config.runtime.phase_timing:
        return False
    wanted = config.runtime.device_round
    return target.device.type != "cpu" if wanted is None else wanted


def choose_drafter(
    config: EngineConfig, view: TargetView, ready: DraftProvider | None, progress: Progress | None = None
) -> Drafting:
    """The provider and depth to draft with: a ready one, else what ``spec_method`` names, else none."""
    from ..draft.artifact import LoadRequest
    from ..draft.registry import default_registry, resolve_method

    wanted = config.spec.tokens
    if ready is not None:
        depth = 0 if isinstance(ready, NullDrafter) else 4 if wanted is None else wanted
        return Drafting(ready, depth, "given by the caller")
    registry = default_registry()
    weights = None if wanted == 0 else _drafter_weights(config, progress)
    method, reason = resolve_method(config.spec.method, registry, weights)
    if method == "none" or wanted == 0:
        return Drafting(NullDrafter(), 0, reason if method == "none" else "spec_tokens is 0")
    request = LoadRequest(
        directory=weights,
        view=view,
        num_draft_tokens=wanted,
        lookup_min=config.spec.prompt_lookup_min,
        lookup_max=config.spec.prompt_lookup_max,
        shared_tokens=config.spec.shared_tokens,
    )
    loaded = registry.load(method, request)
    return Drafting(loaded.provider, loaded.num_draft_tokens, reason)


def _drafter_weights(config: EngineConfig, progress: Progress | None) -> Path | None:
    """Where the weights named by ``spec_model`` lie: as given if that exists, else fetched like any model."""
    from ..models.artifact import open_artifact

    name = config.spec.model
    if name is None or config.spec.method == "none":
        return None
    path = Path(name).expanduser()
    return path if path.exists() else open_artifact(name, None, config.model.download_timeout, progress).path


def resolve_device(device: str) -> str:
    """``auto`` -> the best device of this machine; anything else must exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise ConfigError("device", f"must be auto, cpu, cuda or mps, not {device!r}")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise ConfigError("device", f"{device!r} is not available on this machine")
    return device


def model_facts(target: TargetBinding, groups: Sequence[BlockGroupSpec], draft_bytes: int) -> ModelFacts:
    """What the memory plan needs of a loaded target and its drafter."""
    return ModelFacts(
        weight_bytes=target.weight_bytes + draft_bytes,
        kv_groups=groups,
        kv_dtype_size=target.kv_dtype.itemsize,
        hidden_size=target.hidden_size,
        intermediate_size=target.config.intermediate_size,
        vocab_size=target.vocab_size,
        max_model_len=target.max_model_len,
    )


def _tables(
    config: EngineConfig, target: TargetBinding, groups: Sequence[BlockGroupSpec], size: tuple[MemoryPlan, int]
) -> RowTables:
    """Pools of the planned number of blocks and tables of so many rows."""
    plan, rows = size
    block_size = config.cache.block_size
    store = KVStore(groups, plan.num_blocks, block_size, target.kv_dtype, target.device)
    target.attach(store)
    pools = {name: BlockPool(count, block_size) for name, count in plan.num_blocks.items()}
    return RowTables(rows, target.max_model_len, groups, pools, store, target.device)


def _sampling_defaults(artifact: ModelArtifact, mode: str) -> dict[str, Any]:
    """Sampling fields of the model's ``generation_config`` that chat, command line and server start from."""
    if mode == "none":
        return {}
    source = artifact.generation_config
    defaults = {
        name: source[name] for name in ("temperature", "top_p", "top_k", "min_p") if source.get(name) is not None
    }
    if source.get("do_sample") is False:
        defaults = {"temperature": 0.0}
    return defaults


def _info(
    config: EngineConfig, target: TargetBinding, drafting: Drafting, plan: MemoryPlan, limits: Limits
) -> dict[str, Any]:
    return {
        "model": config.model.model,
        "architecture": target.config.family,
        "dtype": target.dtype,
        "device": str(target.device),
        "exactness": target.exactness,
        "drafter": drafting.provider.id,
        "drafter_reason": drafting.reason,
        "spec_tokens": drafting.depth,
        "max_model_len": target.max_model_len,
        "max_num_seqs": limits.rows,
        "prefill_chunk": limits.chunk,
        "kv_cache_tokens": plan.kv_tokens,
        "memory": plan.as_dict(),
        "num_threads": torch.get_num_threads(),
    }
