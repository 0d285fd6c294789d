"""The decode benchmark as a picture: speeds by arm and class, and speed-ups over how much of an output is copied.

Needs the extra ``plot`` (matplotlib), which is loaded when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from .decode import Measurement
from .figures import ArmFigures, Figures, classes_of


def require_plot() -> None:
    """Raise :class:`ConfigError` now rather than after a long run if pictures cannot be drawn here."""
    figure_class()


def figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plot", "needs matplotlib; install it with: pip install 'paceline[plot]'") from error
    return Figure


def draw(measurement: Measurement, path: Path) -> None:
    """Write a PNG to ``path``."""
    figures = Figures(measurement)
    classes = classes_of(figures)
    height = 2.2 + 0.32 * sum(len(arms) for arms in classes.values())
    canvas = figure_class()(figsize=(13.0, max(5.0, height)), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    _draw_speeds(left, classes)
    _draw_speedups(right, figures)
    machine = measurement.machine
    canvas.suptitle(f"{measurement.settings.model} · {machine['cpu']} · {machine['threads']} threads", fontsize=11)
    canvas.savefig(path, dpi=130)


def _draw_speeds(axes: Any, classes: dict[str, list[ArmFigures]]) -> None:
    labels: list[str] = []
    for number, (kind, arms) in enumerate(classes.items()):
        places = range(len(labels), len(labels) + len(arms))
        bars = axes.barh(places, [arm.decode_tokens_per_second for arm in arms], color=f"C{number}", label=kind)
        axes.bar_label(bars, [_bar_text(arm) for arm in arms], padding=3, fontsize=8)
        labels += [arm.arm for arm in arms]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("decode tokens per second (speed-up over plain of the same format)")
    axes.legend(title="plain output", fontsize=8)


def _bar_text(arm: ArmFigures) -> str:
    plain = next((bound for base, bound in arm.against.items() if base.startswith("plain ")), None)
    speed = f"{arm.decode_tokens_per_second:.0f}"
    return speed if plain is None else f"{speed} ({plain.value:.2f}x, {plain.low:.2f}–{plain.high:.2f})"


def _draw_speedups(axes: Any, figures: Figures) -> None:
    subjects = figures.measurement.subjects
    places = [place for place, subject in enumerate(subjects) if subject.measured]
    for name in _drafting(figures):
        ratios = [figures.prompt_speedup(name, figures.plain_of(name), place) for place in places]
        axes.scatter([subjects[place].overlap.reused for place in places], ratios, s=18, label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("share of the output's 4-grams seen before")
    axes.set_ylabel("decode speed-up over plain, per prompt")
    if places and _drafting(figures):
        axes.legend(fontsize=8)


def _drafting(figures: Figures) -> Sequence[str]:
    return [name for name, arm in figures.arms.items() if arm["own"] and figures.plain_of(name) != name]
