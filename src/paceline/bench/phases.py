"""``bench decode --phases``: where the time of a round goes, by drafter: draft, verify, sample, commit.

Rounds are timed by the engine's phase clock, which makes them synchronous; the speeds of such runs are no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.config import EngineConfig
from ..core.errors import RequestError
from ..core.stats import EngineStats
from ..engine.inspect import inspect_machine
from ..engine.phases import PHASES
from ..models.artifact import open_artifact
from ..models.tokenizer import load_tokenizer
from .arms import PLAIN, EngineArm, EngineSpec, encode_prompt
from .decode import DecodeSettings, Progress
from .plot import figure_class
from .sheets import Sheet
from .workloads import read_workload, take_evenly

_WARM_UP_TOKENS = 16
_MOST_OPERATIONS = 15


@dataclass(frozen=True)
class ArmPhases:
    """One arm's rounds. ``ms``: milliseconds per round by phase; ``tokens``: delivered per round, all rows together;
    ``rows``: decoding per round. ``operations``: phase -> operation -> count per round; ``parts``: part of the target
    -> milliseconds per round; each empty if not asked for."""

    arm: str
    rounds: int
    rows: float
    tokens: float
    ms: Mapping[str, float]
    operations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Milliseconds of a whole round, delivery left out."""
        return sum(self.ms.values())


@dataclass(frozen=True)
class PhaseWishes:
    """What else is looked at, each in a run of its own, for it distorts the times: operations, parts of the target."""

    operations: bool = False
    parts: bool = False


def measure_phases(
    settings: DecodeSettings, wishes: PhaseWishes, progress: Progress | None = None
) -> tuple[dict[str, Any], list[ArmPhases]]:
    """Facts of the machine, and the phases of every arm: plain decoding and each drafter in each number format."""
    tell = progress or (lambda stage, done, total: None)
    machine = inspect_machine(EngineConfig.build(device=settings.device, num_threads=settings.threads))
    dtypes = tuple(dict.fromkeys(machine["dtype"] if dtype == "auto" else dtype for dtype in settings.dtypes))
    prompts = _prompts(settings)
    plans = [(dtype, method) for dtype in dtypes for method in (PLAIN, *settings.drafters)]
    found = []
    for number, (dtype, method) in enumerate(plans):
        tell("Phases", number, len(plans))
        found.append(_measure_arm(_spec(settings, prompts, dtype, method), settings, prompts, wishes))
    return machine, found


def _prompts(settings: DecodeSettings) -> list[tuple[int, ...]]:
    artifact = open_artifact(settings.model, settings.revision)
    tokenizer = load_tokenizer(artifact)
    room = int(artifact.config.get("max_position_embeddings", 1 << 30)) - settings.max_tokens
    texts = [prompt.text for spec in settings.prompts for prompt in take_evenly(read_workload(spec), settings.limit)]
    encoded = [encode_prompt(tokenizer, text) for text in texts]
    fitting = [ids for ids in encoded if len(ids) <= room]
    if not fitting:
        raise RequestError("prompts", f"none leaves room for {settings.max_tokens} tokens in the context")
    return fitting


def _spec(settings: DecodeSettings, prompts: Sequence[tuple[int, ...]], dtype: str, method: str) -> EngineSpec:
    rows = max(1, settings.batch)
    common: dict[str, Any] = {
        "revision": settings.revision,
        "device": settings.device,
        "num_threads": settings.threads,
        "max_num_seqs": rows,
        "kv_cache_tokens": rows * (max(map(len, prompts)) + settings.max_tokens + 64),
        "phase_timing": True,
    }
    if method != PLAIN:
        common |= {"spec_tokens": settings.spec_tokens, "spec_model": settings.spec_model}
    return EngineSpec(settings.model, dtype, method, common)


def _measure_arm(
    spec: EngineSpec, settings: DecodeSettings, prompts: Sequence[tuple[int, ...]], wishes: PhaseWishes
) -> ArmPhases:
    """Timed runs first; each further look is an engine of its own, on the first prompts only."""
    timed = _run(spec, settings, prompts)
    rounds = timed.rounds
    phases = timed.phase_ms or {}
    group = prompts[: max(1, settings.batch)]
    operations: dict[str, dict[str, float]] = {}
    parts: dict[str, float] = {}
    if wishes.operations:
        looked = _run(_with(spec, op_inventory=True), settings, group)
        operations = {phase: _per(counts, looked.rounds) for phase, counts in looked.op_counts.items()}
    if wishes.parts:
        looked = _run(_with(spec, layer_profile=True), settings, group)
        parts = _per(looked.layer_ms, looked.rounds)
    return ArmPhases(
        arm=spec.name,
        rounds=rounds,
        rows=(timed.num_drafts + timed.plain_rounds + timed.span_rounds) / rounds,
        tokens=timed.generation_tokens / rounds,
        ms={phase: phases.get(phase, 0.0) / rounds for phase in PHASES},
        operations=operations,
        parts=parts,
    )


def _with(spec: EngineSpec, **settings: Any) -> EngineSpec:
    return EngineSpec(spec.model, spec.dtype, spec.method, spec.settings | settings)


def _per(totals: Mapping[str, float], rounds: int) -> dict[str, float]:
    return {name: total / rounds for name, total in totals.items()}


def _run(spec: EngineSpec, settings: DecodeSettings, prompts: Sequence[tuple[int, ...]]) -> EngineStats:
    """What an engine counted over all prompts, less what it counted while it warmed up."""
    arm = EngineArm(spec)
    try:
        arm.run(prompts[0], _WARM_UP_TOKENS, True)
        before = arm.stats()
        size = max(1, settings.batch)
        for start in range(0, len(prompts), size):
            arm.run_together(prompts[start : start + size], settings.max_tokens, settings.ignore_eos)
        return counted_since(before, arm.stats())
    finally:
        arm.close()


def counted_since(before: EngineStats, after: EngineStats) -> EngineStats:
    """The figures this report reads, over the time between two looks at an engine."""
    found = EngineStats()
    for name in ("rounds", "num_drafts", "plain_rounds", "span_rounds", "generation_tokens"):
        setattr(found, name, getattr(after, name) - getattr(before, name))
    found.phase_ms = _less(after.phase_ms or {}, before.phase_ms or {})
    found.layer_ms = _less(after.layer_ms, before.layer_ms)
    found.op_counts = {
        phase: {name: count - before.op_counts.get(phase, {}).get(name, 0) for name, count in counts.items()}
        for phase, counts in after.op_counts.items()
    }
    return found


def _less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def phase_sheets(found: Sequence[ArmPhases]) -> list[Sheet]:
    """The phases of all arms; then, where looked at, operations and parts of each."""
    rows = [
        (
            each.arm,
            str(each.rounds),
            f"{each.rows:.1f}",
            f"{each.tokens:.2f}",
            *(f"{each.ms[phase]:.2f} ({each.ms[phase] / each.total:.0%})" for phase in PHASES),
            f"{each.total:.2f}",
            f"{each.total / each.tokens:.2f}",
        )
        for each in found
    ]
    headings = ("arm", "rounds", "rows", "tokens per round", *PHASES, "round", "per token")
    note = "synchronous rounds with a barrier after each phase, delivery left out: not comparable with untimed runs"
    sheets = [Sheet("Milliseconds per round by phase", headings, rows, note)]
    sheets += [_operation_sheet(each) for each in found if each.operations]
    return sheets + [_part_sheet(each) for each in found if each.parts]


def _operation_sheet(each: ArmPhases) -> Sheet:
    names = {name for counts in each.operations.values() for name in counts}

    def counts(name: str) -> tuple[float, ...]:
        return tuple(each.operations[phase].get(name, 0.0) for phase in each.operations)

    order = sorted(names, key=lambda name: (-sum(counts(name)), name))
    rows = [(name, *(f"{count:.1f}" for count in counts(name))) for name in order[:_MOST_OPERATIONS]]
    totals = [sum(each.operations[phase].values()) for phase in each.operations]
    rows.append((f"all {len(names)} kinds", *(f"{total:.1f}" for total in totals)))
    return Sheet(f"Operations per round, {each.arm}", ("operation", *each.operations), rows)


def _part_sheet(each: ArmPhases) -> Sheet:
    parts = parts_together(each.parts)
    whole = sum(parts.values())
    rows = [(name, f"{spent:.2f}", f"{spent / whole:.0%}") for name, spent in parts.items()]
    note = "all layers together; a barrier around every part distorts the total: compare parts with each other"
    return Sheet(f"Milliseconds per round inside verify, {each.arm}", ("part", "ms", "share"), rows, note)


def parts_together(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of all layers added up; of a part that contains others what is left of it, as ``rest``."""
    found: dict[str, float] = {}
    for name, spent in parts.items():
        kind = name.split(".", 2)[2] if name.startswith("layers.") else name
        found[kind] = found.get(kind, 0.0) + spent
    for kind in list(found):
        inner = sum(spent for name, spent in found.items() if name.startswith(f"{kind}."))
        if inner:
            found[f"{kind}, rest"] = max(0.0, found.pop(kind) - inner)
    return found


def phase_document(settings: DecodeSettings, machine: Mapping[str, Any], found: Sequence[ArmPhases]) -> dict[str, Any]:
    """Everything as plain JSON."""
    arms = [asdict(each) | {"total": each.total} for each in found]
    return {"bench": "decode phases", "machine": dict(machine), "settings": asdict(settings), "arms": arms}


def draw_phases(settings: DecodeSettings, machine: Mapping[str, Any], found: Sequence[ArmPhases], path: Path) -> None:
    """Write a PNG: a stacked bar of milliseconds per round for every arm, and the same per token."""
    canvas = figure_class()(figsize=(13.0, 1.8 + 0.55 * len(found)), layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    _stack(left, found, lambda each: 1.0, "ms per round")
    _stack(right, found, lambda each: each.tokens, "ms per delivered token")
    left.legend(fontsize=8, ncols=len(PHASES), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    batch = f" · {settings.batch} rows" if settings.batch > 1 else ""
    canvas.suptitle(f"{settings.model} · {machine['cpu']} · {machine['threads']} threads{batch}", fontsize=11)
    canvas.savefig(path, dpi=130)


def _stack(axes: Any, found: Sequence[ArmPhases], per: Callable[[ArmPhases], float], label: str) -> None:
    places = range(len(found))
    ends = [0.0] * len(found)
    for phase in PHASES:
        widths = [each.ms[phase] / per(each) for each in found]
        axes.barh(places, widths, left=ends, label=phase)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.annotate(f"{end:.1f}", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(places, [each.arm for each in found], fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.set_xlabel(label)
