"""What a decode benchmark found, as JSON, as tables for a terminal, and as Markdown. Formats; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import __version__
from .decode import Measurement, settings_document
from .figures import DEFINITIONS, ArmFigures, Figures, batch_figures, classes_of
from .pairs import Bound
from .sheets import Sheet, markdown_page, terminal_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..core.errors import PacelineError


def document(measurement: Measurement, load: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Everything as plain JSON. ``load``: the machine's load averages before and after."""
    figures = Figures(measurement)
    return {
        "bench": "decode",
        "version": __version__,
        "machine": measurement.machine | {"load_average": [list(entry) for entry in load]},
        "settings": settings_document(measurement.settings),
        "arms": measurement.arms,
        "peer_trials": {dtype: [asdict(t) for t in trials] for dtype, trials in measurement.trials.items()},
        "all_equal": figures.all_equal(),
        "classes": {kind: [arm.document() for arm in found] for kind, found in classes_of(figures).items()},
        "batch": batch_figures(measurement),
        "prompts": [_prompt_document(figures, place) for place in range(len(measurement.subjects))],
        "definitions": DEFINITIONS,
    }


def _prompt_document(figures: Figures, place: int) -> dict[str, Any]:
    subject = figures.measurement.subjects[place]
    found: dict[str, Any] = {
        "name": subject.prompt.name,
        "source": subject.prompt.source,
        "group": subject.prompt.group,
        "status": subject.status,
        "class": subject.overlap.kind,
        **asdict(subject.overlap),
        "prompt_tokens": len(subject.ids),
        "output_tokens": {dtype: run.count for dtype, run in subject.references.items()},
    }
    if subject.measured:
        found["arms"] = {
            name: {
                "decode_tokens_per_second": figures.decode_rate(name, place),
                "speedup": figures.prompt_speedup(name, figures.plain_of(name), place),
                "same_tokens": figures.same_tokens(name, place),
                "seconds": [run.seconds for run in figures.runs(name, place)],
                "first_seconds": [run.first_seconds for run in figures.runs(name, place)],
            }
            for name in figures.arms
        }
    return found


def sheets(measurement: Measurement) -> list[Sheet]:
    """All tables of a report, in reading order."""
    figures = Figures(measurement)
    found = [_class_sheet(kind, arms) for kind, arms in classes_of(figures).items()]
    found += [_acceptance_sheet(figures), _prompt_sheet(figures)]
    if measurement.batches:
        found.append(_batch_sheet(measurement))
    if measurement.trials:
        found.append(_trial_sheet(measurement))
    left_out = [s for s in measurement.subjects if not s.measured]
    if left_out:
        rows = [(s.prompt.name, s.prompt.source, s.status) for s in left_out]
        found.append(Sheet("Prompts left out", ("prompt", "source", "reason"), rows))
    return found


def _class_sheet(kind: str, arms: Sequence[ArmFigures]) -> Sheet:
    bases = list(dict.fromkeys(base for arm in arms for base in arm.against if base.startswith("transformers")))
    headings = ("arm", "decode tok/s", "tok/s", "first token ms", "vs plain", "vs plain, whole call")
    rows = []
    for arm in arms:
        plain = next((bound for base, bound in arm.against.items() if base.startswith("plain ")), None)
        rows.append(
            (
                arm.arm,
                f"{arm.decode_tokens_per_second:.1f}",
                f"{arm.tokens_per_second:.1f}",
                f"{arm.time_to_first_token_ms:.0f}",
                _shown(plain),
                _shown(arm.end_to_end),
                *(_shown(arm.against.get(base)) for base in bases),
                f"{arm.same_tokens}/{arm.prompts}",
                "yes" if arm.steady else "NO",
            )
        )
    return Sheet(
        f"Speed on {arms[0].prompts} {kind} prompts",
        (*headings, *(f"vs {base}" for base in bases), "same tokens", "steady"),
        rows,
        f"{kind}: {DEFINITIONS[kind]}. Speed-ups are of decoding, with 95 percent bounds, against plain decoding of "
        "the same number format and against the fastest transformers settings of any format.",
    )


def _acceptance_sheet(figures: Figures) -> Sheet:
    rows = []
    for kind, arms in classes_of(figures).items():
        for arm in arms:
            found = arm.acceptance
            if found is not None and found.draft_rounds:
                places = " ".join(f"{share:.2f}" for share in found.by_position)
                length, share = f"{found.mean_acceptance_length:.2f}", f"{found.draft_acceptance_rate:.0%}"
                rows.append((kind, arm.arm, f"{found.tokens_per_forward:.2f}", length, share, places))
    headings = ("class", "arm", "tokens per forward", "mean acceptance length", "accepted", "by position")
    return Sheet("Acceptance", headings, rows, f"Mean acceptance length: {DEFINITIONS['mean_acceptance_length']}.")


def _prompt_sheet(figures: Figures) -> Sheet:
    names = list(figures.arms)
    rows = []
    for place, subject in enumerate(figures.measurement.subjects):
        if not subject.measured:
            continue
        shares = subject.overlap
        speeds = []
        for name in names:
            base = figures.plain_of(name)
            rate = f"{figures.decode_rate(name, place):.0f}"
            ratio = "" if base == name else f" ({figures.prompt_speedup(name, base, place):.2f}x)"
            mark = "" if figures.same_tokens(name, place) else " ≠"
            speeds.append(rate + ratio + mark)
        count = max(run.count for run in subject.references.values())
        about = (f"{shares.copied:.2f}", f"{shares.distinct:.2f}", f"{shares.reused:.2f}")
        rows.append((subject.prompt.name, shares.kind, str(len(subject.ids)), str(count), *about, *speeds))
    headings = ("prompt", "class", "in", "out", "copied", "distinct", "reused", *names)
    note = "Decode tokens per second, in brackets the speed-up over plain; ≠: other tokens than plain decoding."
    return Sheet("Prompts", headings, rows, note)


def _batch_sheet(measurement: Measurement) -> Sheet:
    rows = []
    for entry in batch_figures(measurement):
        bound = None if entry["speedup"] is None else Bound(**entry["speedup"])
        speeds = (f"{entry['alone_tokens_per_second']:.1f}", f"{entry['together_tokens_per_second']:.1f}")
        rows.append((entry["arm"], *speeds, _shown(bound), "yes" if entry["same_tokens"] else "NO"))
    size = measurement.settings.batch
    headings = ("arm", "tok/s one by one", f"tok/s {size} together", "speed-up", "same tokens")
    note = "Whole calls, prefill included; the batch ends with its last."
    return Sheet(f"{size} prompts together", headings, rows, note)


def _trial_sheet(measurement: Measurement) -> Sheet:
    rows = [
        (dtype, trial.attention, str(trial.lookup or "–"), f"{1 / trial.seconds_per_token:.1f}")
        for dtype, trials in measurement.trials.items()
        for trial in trials
    ]
    note = "The fastest attention and lookup length of each format are used above."
    headings = ("dtype", "attention", "lookup tokens", "tok/s")
    return Sheet("Settings of transformers that were tried", headings, rows, note)


def _shown(bound: Bound | None) -> str:
    return "–" if bound is None else f"{bound.value:.2f}x [{bound.low:.2f}, {bound.high:.2f}]"


def heading_lines(measurement: Measurement, load: Sequence[Sequence[float]]) -> list[str]:
    """Machine and settings in a few lines, and a warning if the machine was busy before the run."""
    machine, settings = measurement.machine, measurement.settings
    libraries = machine["libraries"]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['cpu_features'])}), "
        f"{machine['threads']} threads, torch {libraries['torch']}, transformers {libraries['transformers']}"
    )
    what = (
        f"{settings.model}, greedy, at most {settings.max_tokens} tokens, {settings.repeats} interleaved repeats, "
        f"load average {load[0][0]:.2f} before and {load[-1][0]:.2f} after"
    )
    lines = [where, what]
    if load[0][0] > 0.25 * (machine["cores"] or 1):
        lines.append("The machine was busy before the run: absolute speeds are too low, ratios are uncertain.")
    return lines


def renderables(measurement: Measurement, load: Sequence[Sequence[float]]) -> list[RenderableType]:
    """The report for a terminal."""
    return [*heading_lines(measurement, load), *(terminal_table(sheet) for sheet in sheets(measurement))]


def markdown(measurement: Measurement, load: Sequence[Sequence[float]]) -> str:
    """The report as a Markdown page."""
    return markdown_page("Decode benchmark", heading_lines(measurement, load), sheets(measurement))


def first_failure(measurement: Measurement) -> PacelineError | None:
    """An error if tokens differ though the engine promises bitwise equality; otherwise near ties may differ."""
    from ..core.errors import PacelineError

    figures = Figures(measurement)
    promised = {str(arm["name"]) for arm in measurement.own_arms() if arm["exactness"] == "bitwise"}
    for name, place in measurement.runs:
        if name in promised and not figures.same_tokens(name, place):
            prompt = measurement.subjects[place].prompt.name
            return PacelineError(f"{name} gave other tokens than plain decoding on prompt {prompt!r}")
    for batch in measurement.batches:
        if batch.arm in promised and not batch.equal:
            return PacelineError(f"{batch.arm} gave other tokens in group {batch.group} of a batch than alone")
    return None
