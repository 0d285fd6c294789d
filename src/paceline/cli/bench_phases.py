"""``paceline bench decode --phases``: where the time of a round goes. Reads flags and prints; the last line is JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Flag

if TYPE_CHECKING:
    from ..bench.decode import DecodeSettings

PHASES = "Phases of a round"

PHASE_FLAGS = (
    Flag("phases", bool, "Time draft, verify, sample and commit of every arm's rounds instead.", PHASES, default=False),
    Flag("op_inventory", bool, "Also count tensor operations, in a run of its own.", PHASES, default=False),
    Flag("layer_profile", bool, "Also time the parts of the target, in a run of its own.", PHASES, default=False),
)
#: Flags that mean nothing here: given, they are refused.
_OF_SPEEDS = ("classes", "report", "peers")


def show_phases(settings: DecodeSettings, values: dict[str, Any]) -> None:
    """Measure and print the phases; a picture if one is asked for."""
    from rich.console import Console

    from ..bench.phases import PhaseWishes, draw_phases, measure_phases, phase_document, phase_sheets
    from ..bench.sheets import terminal_table
    from ..core.errors import ConfigError
    from .bench import bar

    for name in _OF_SPEEDS:
        if values[name] is not None:
            raise ConfigError(name, "means nothing with --phases; leave it out")
    wishes = PhaseWishes(values["op_inventory"], values["layer_profile"])
    with bar() as progress:
        machine, found = measure_phases(settings, wishes, progress)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for sheet in phase_sheets(found):
        console.print(terminal_table(sheet))
    if values["plot"] is not None:
        draw_phases(settings, machine, found, Path(values["plot"]))
    print(json.dumps(phase_document(settings, machine, found), ensure_ascii=False))


def refuse_without_phases(values: dict[str, Any]) -> None:
    """Looks at operations and parts need timed phases."""
    from ..core.errors import ConfigError

    for name in ("op_inventory", "layer_profile"):
        if values[name]:
            raise ConfigError(name, "needs --phases")
