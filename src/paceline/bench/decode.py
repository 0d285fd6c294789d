"""``bench decode``: plain decoding, drafters and ``transformers`` on the same model and prompts, in interleaved runs.

Chooses and runs; what the numbers mean is computed in :mod:`.figures` and shown by :mod:`.report`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.config import EngineConfig
from ..core.errors import ConfigError, RequestError
from ..draft.registry import default_registry, resolve_method
from ..engine.inspect import inspect_machine
from ..models.artifact import ModelArtifact, open_artifact
from ..models.tokenizer import load_tokenizer
from .arms import PLAIN, Arm, EngineArm, EngineSpec, Run, encode_prompt
from .pairs import interleaved
from .peers import LOOKUP_TOKENS, PEER_DTYPES, PeerArm, PeerModel, Trial, best_settings
from .workloads import BUILTIN, CLASSES, COPY_HEAVY, BenchPrompt, Overlap, overlap, read_workload, take_evenly

#: Hears of the stage, the runs done and the runs to do.
Progress = Callable[[str, int, int], None]

MEASURED = "measured"
_WARM_UP_TOKENS = 16
_TRIAL_TOKENS = 48


@dataclass(frozen=True)
class DecodeSettings:
    """What to measure. ``methods``: drafter kinds, empty = every kind that needs no weights; plain always runs.

    ``limit``: prompts per workload. ``min_tokens``: shorter answers are left out of the speeds. ``classes``: measure
    only prompts whose plain output is of one of these classes, empty = all. ``batch``: also decode groups of so many
    prompts together (0 = no). ``ignore_eos``: every answer has exactly ``max_tokens`` tokens.
    """

    model: str = "demo"
    revision: str | None = None
    dtypes: tuple[str, ...] = ("bfloat16",)
    methods: tuple[str, ...] = ()
    spec_model: str | None = None
    spec_tokens: int | None = None
    threads: int | None = None
    device: str = "auto"
    prompts: tuple[str, ...] = BUILTIN
    limit: int | None = None
    max_tokens: int = 256
    min_tokens: int = 24
    repeats: int = 3
    classes: tuple[str, ...] = ()
    batch: int = 0
    ignore_eos: bool = False
    peers: bool = True
    seed: int = 0

    def check(self) -> None:
        """Raise :class:`ConfigError` naming the setting that cannot be honoured. Loads nothing."""
        for name, least in (("max_tokens", 2), ("min_tokens", 2), ("repeats", 1), ("batch", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(name, f"must be at least {least}, not {value}")
        if self.peers and self.min_tokens <= 1 + max(LOOKUP_TOKENS):
            least = 2 + max(LOOKUP_TOKENS)  # the first burst of prompt lookup is no decode time
            raise ConfigError("min_tokens", f"must be at least {least} to compare with peers, not {self.min_tokens}")
        for name in self.classes:
            if name not in CLASSES:
                raise ConfigError("classes", f"must be of {', '.join(CLASSES)}, not {name!r}")
        if not self.dtypes or not self.prompts:
            raise ConfigError("prompts" if self.dtypes else "dtype", "is empty; name at least one")
        for method in self.drafters:
            resolve_method(method, default_registry())
            if _needs_weights(method) and self.spec_model is None:
                raise ConfigError("spec_model", f"is missing: drafter kind {method!r} needs weights")

    @property
    def drafters(self) -> tuple[str, ...]:
        """Drafter kinds to run beside plain decoding."""
        known = tuple(kind for kind in default_registry().kinds() if not _needs_weights(kind))
        return tuple(method for method in dict.fromkeys(self.methods or known) if method != PLAIN)


def _needs_weights(method: str) -> bool:
    return default_registry().get(method).artifact


@dataclass
class Subject:
    """A prompt and what is known of it. ``status``: ``measured``, or why it is not.

    ``references``: number format -> its plain run, whose tokens every other run of that format is compared with.
    """

    prompt: BenchPrompt
    ids: tuple[int, ...]
    references: dict[str, Run] = field(default_factory=dict)
    overlap: Overlap = field(default_factory=lambda: overlap((), ()))
    status: str = MEASURED

    @property
    def measured(self) -> bool:
        return self.status == MEASURED


@dataclass(frozen=True)
class BatchRun:
    """One repeat of one group of prompts on one arm: one after the other, then together. Tokens by prompt."""

    arm: str
    group: int
    tokens: int
    alone_seconds: float
    together_seconds: float
    equal: bool


@dataclass
class Measurement:
    """Everything a run of the benchmark saw. ``runs``: (arm, place of the subject) -> its runs by repeat."""

    settings: DecodeSettings
    machine: dict[str, Any]
    arms: list[dict[str, Any]]
    subjects: list[Subject]
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    batches: list[BatchRun] = field(default_factory=list)

    def own_arms(self) -> list[dict[str, Any]]:
        return [arm for arm in self.arms if arm["own"]]


def measure_decode(settings: DecodeSettings, progress: Progress | None = None) -> Measurement:
    """Load every arm, choose the prompts by what plain decoding makes of them, then measure. Closes what it loaded.

    Raises what loading or decoding raises; :class:`RequestError` if no prompt is left to measure.
    """
    settings.check()
    tell = progress or (lambda stage, done, total: None)
    machine = inspect_machine(EngineConfig.build(device=settings.device, num_threads=settings.threads))
    named = (machine["dtype"] if dtype == "auto" else dtype for dtype in settings.dtypes)
    settings = replace(settings, dtypes=tuple(dict.fromkeys(named)))
    artifact = open_artifact(settings.model, settings.revision)
    subjects = list(_subjects(settings, artifact))
    with contextlib.ExitStack() as stack:
        engines = list(_engines(settings, subjects, stack, tell))
        _refer(settings, engines, subjects, tell)
        chosen = [place for place, subject in enumerate(subjects) if subject.measured]
        if not chosen:
            raise RequestError("prompts", "none is left to measure: " + "; ".join(s.status for s in subjects[:5]))
        trials: dict[str, list[Trial]] = {}
        peers = list(_peers(settings, artifact, subjects, (stack, trials)))
        arms: list[Arm] = [*engines, *peers]
        facts = [arm.facts() for arm in arms]
        found = Measurement(settings, machine, facts, subjects, trials)
        _warm_up(arms, subjects[chosen[0]])
        _measure(found, arms, chosen, tell)
        if settings.batch:
            _measure_batches(found, engines, chosen, tell)
    return found


def _subjects(settings: DecodeSettings, artifact: ModelArtifact) -> Iterator[Subject]:
    tokenizer = load_tokenizer(artifact)
    context = int(artifact.config.get("max_position_embeddings", 1 << 30))
    for spec in settings.prompts:
        for prompt in take_evenly(read_workload(spec), settings.limit):
            subject = Subject(prompt, encode_prompt(tokenizer, prompt.text))
            if len(subject.ids) + settings.max_tokens > context:
                subject.status = f"longer than the context of {context} tokens"
            yield subject


def _engines(
    settings: DecodeSettings, subjects: Sequence[Subject], stack: contextlib.ExitStack, tell: Progress
) -> Iterator[EngineArm]:
    longest = max((len(subject.ids) for subject in subjects if subject.measured), default=1)
    rows = max(1, settings.batch)
    common: dict[str, Any] = {
        "revision": settings.revision,
        "device": settings.device,
        "num_threads": settings.threads,
        "max_num_seqs": rows,
        "kv_cache_tokens": rows * (longest + settings.max_tokens + 64),
    }
    plans = [(dtype, method) for dtype in settings.dtypes for method in (PLAIN, *settings.drafters)]
    for number, (dtype, method) in enumerate(plans):
        tell("Loading", number, len(plans))
        extra: dict[str, Any] = {}
        if method != PLAIN:
            directory = settings.spec_model if _needs_weights(method) else None
            extra = {"spec_tokens": settings.spec_tokens, "spec_model": directory}
        arm = EngineArm(EngineSpec(settings.model, dtype, method, common | extra))
        stack.callback(arm.close)
        yield arm


def _refer(settings: DecodeSettings, engines: Sequence[EngineArm], subjects: Sequence[Subject], tell: Progress) -> None:
    """Decode every prompt plainly in every format, and choose by rule what is measured, before any time is taken."""
    plain = [arm for arm in engines if arm.plain]
    for number, subject in enumerate(subjects):
        tell("Plain outputs", number, len(subjects))
        if not subject.measured:
            continue
        for arm in plain:
            subject.references[arm.dtype] = arm.run(subject.ids, settings.max_tokens, settings.ignore_eos)
        subject.overlap = overlap(subject.ids, subject.references[plain[0].dtype].token_ids)
        shortest = min(run.count for run in subject.references.values())
        if shortest < settings.min_tokens:
            subject.status = f"answer of {shortest} tokens, fewer than {settings.min_tokens}"
        elif settings.classes and subject.overlap.kind not in settings.classes:
            subject.status = f"of class {subject.overlap.kind}"


def _peers(
    settings: DecodeSettings,
    artifact: ModelArtifact,
    subjects: Sequence[Subject],
    into: tuple[contextlib.ExitStack, dict[str, list[Trial]]],
) -> Iterator[PeerArm]:
    if not settings.peers:
        return
    stack, trials = into
    measured = [subject for subject in subjects if subject.measured]
    sample = next((subject for subject in measured if subject.overlap.kind == COPY_HEAVY), measured[0])
    device = str(inspect_machine(EngineConfig.build(device=settings.device))["device"])
    for dtype in settings.dtypes:
        if dtype not in PEER_DTYPES:
            continue
        model = PeerModel(artifact.path, dtype, device)
        stack.callback(model.close)
        trials[dtype], lookup = best_settings(model, sample.ids, min(_TRIAL_TOKENS, settings.max_tokens))
        yield PeerArm(model, lookup.attention, None)
        yield PeerArm(model, lookup.attention, lookup.lookup)


def _warm_up(arms: Sequence[Arm], subject: Subject) -> None:
    for arm in arms:
        arm.run(subject.ids, _WARM_UP_TOKENS, True)


def _measure(found: Measurement, arms: Sequence[Arm], chosen: Sequence[int], tell: Progress) -> None:
    """All arms on every prompt, one after the other within each repeat. Arms that are not ours generate as many tokens
    as plain decoding of the same format did."""
    settings = found.settings
    total = len(chosen) * settings.repeats * len(arms)
    done = 0
    for place in chosen:
        subject = found.subjects[place]
        for repeat in range(settings.repeats):
            for arm in interleaved(arms, repeat):
                tokens = settings.max_tokens if arm.own else subject.references[arm.dtype].count
                run = arm.run(subject.ids, tokens, settings.ignore_eos)
                found.runs.setdefault((arm.name, place), []).append(run)
                done += 1
                tell("Measuring", done, total)


def _measure_batches(found: Measurement, engines: Sequence[EngineArm], chosen: Sequence[int], tell: Progress) -> None:
    """Full groups of prompts, one by one and together, in turns."""
    size = found.settings.batch
    groups = [chosen[start : start + size] for start in range(0, len(chosen) - size + 1, size)]
    if not groups:
        raise ConfigError("batch", f"is {size}, but only {len(chosen)} prompts are left to measure")
    total = len(groups) * found.settings.repeats
    for number, places in enumerate(groups):
        for repeat in range(found.settings.repeats):
            tell("Batches", number * found.settings.repeats + repeat, total)
            for arm in interleaved(engines, repeat):
                found.batches.append(_batch_run(found, arm, (number, places), repeat))


def _batch_run(found: Measurement, arm: EngineArm, group: tuple[int, Sequence[int]], repeat: int) -> BatchRun:
    settings = found.settings
    number, places = group
    subjects = [found.subjects[place] for place in places]

    def alone() -> list[Run]:
        return [arm.run(subject.ids, settings.max_tokens, settings.ignore_eos) for subject in subjects]

    def together() -> list[Run]:
        return arm.run_together([subject.ids for subject in subjects], settings.max_tokens, settings.ignore_eos)

    if repeat % 2:
        batch, single = together(), alone()
    else:
        single, batch = alone(), together()
    wanted = [subject.references[arm.dtype].token_ids for subject in subjects]
    return BatchRun(
        arm=arm.name,
        group=number,
        tokens=sum(run.count for run in batch),
        alone_seconds=sum(run.seconds for run in single),
        together_seconds=batch[0].seconds,
        equal=[run.token_ids for run in batch] == wanted and [run.token_ids for run in single] == wanted,
    )


def settings_document(settings: DecodeSettings) -> dict[str, Any]:
    """The settings as plain JSON, defaults resolved."""
    return asdict(settings) | {"methods": [PLAIN, *settings.drafters]}
