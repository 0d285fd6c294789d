"""``paceline bench simulate``: flags of the depth simulator; the last line is JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import DEBUG_FLAG, OUTPUT, Flag, with_options

if TYPE_CHECKING:
    from ..bench.simulate_report import SimulationSettings

WORKLOAD = "Workload"
_FLAGS = (
    Flag("traces", list[str], "A file of recorded traces; may be repeated. Default: those that ship.", WORKLOAD),
    Flag(
        "costs", list[str], "A cost table that ships, by name, or a JSON file; may be repeated. Default: all.", WORKLOAD
    ),
    Flag("batch", str, "Numbers of requests together, comma-separated.", WORKLOAD, default="1,4,8"),
    Flag("drafters", str, "Only these drafters of the traces, comma-separated.", WORKLOAD),
    Flag("charge_drafts", bool, "Lookups cost what the table says that a draft costs.", WORKLOAD, default=False),
    Flag("report", str, "Write a Markdown report to this file.", OUTPUT),
    DEBUG_FLAG,
)


@with_options(_FLAGS)
def simulate(**values: Any) -> None:
    """Replay recorded traces against cost tables: fixed depths, the adaptive gate, and an oracle. Runs no model.

    A trace says, for every place of a text, how many tokens a drafter proposed and how many were right; a cost table
    says what windows cost. The last line is one JSON document.
    """
    from rich.console import Console

    from ..bench.sheets import markdown_page, terminal_table
    from ..bench.simulate_report import NOTE, document, sheets
    from ..bench.simulate_report import simulate as run
    from .bench import bar, check_writable

    settings = _settings(values)
    check_writable("report", values["report"])
    with bar() as progress:
        found = run(settings, progress)
    console = Console(width=None if sys.stdout.isatty() else 160)
    tables = sheets(found)
    for sheet in tables:
        console.print(terminal_table(sheet))
    if values["report"] is not None:
        page = markdown_page("Depth, simulated", [NOTE], tables)
        Path(values["report"]).write_text(page, encoding="utf-8")
    print(json.dumps(document(found), ensure_ascii=False))


def _settings(values: dict[str, Any]) -> SimulationSettings:
    from ..bench.simulate_report import SimulationSettings
    from ..core.errors import ConfigError

    try:
        batches = tuple(int(word) for word in values["batch"].split(",") if word.strip())
    except ValueError as error:
        raise ConfigError("batch", f"not a list of numbers: {values['batch']}") from error
    drafters = tuple(word.strip() for word in (values["drafters"] or "").split(",") if word.strip())
    traces, costs = tuple(values["traces"] or ()), tuple(values["costs"] or ())
    return SimulationSettings(traces, costs, batches, drafters, values["charge_drafts"])
