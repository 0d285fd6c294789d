"""``paceline bench calibrate``: measures what rounds cost here, prints the table and keeps it for engines to come."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, MODEL_FLAG, OUTPUT, Flag, with_options

_PLOT_FLAG = Flag("plot", str, "Write a picture (PNG) to this file; needs the extra 'plot'.", OUTPUT)


@with_options((MODEL_FLAG, CONFIG_FLAG, *ENGINE_FLAGS, _PLOT_FLAG, DEBUG_FLAG))
def calibrate(**values: Any) -> None:
    """Measure what a plain round, a verify window and a draft cost on this machine, in at most about 15 seconds.

    The depth of every round is chosen by these costs. The table is kept on disk, where engines find it, in place of one
    measured before. The last line is one JSON document.
    """
    from rich.console import Console

    from ..bench import plot
    from ..bench.calibrate import cost_sheets, document, draw_costs
    from ..bench.sheets import terminal_table
    from ..core.config import EngineConfig
    from ..engine.cost_inspection import calibrate as measure
    from ..engine.progress import loading_bars
    from .bench import check_writable
    from .settings import asked_for

    config = EngineConfig.build(**asked_for(values).engine)
    check_writable("plot", values["plot"])
    if values["plot"] is not None:
        plot.require_plot()
    with loading_bars(sys.stderr.isatty()) as progress:
        found = measure(config, progress)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for sheet in cost_sheets(found.costs, found.key.depth):
        console.print(terminal_table(sheet))
    if values["plot"] is not None:
        draw_costs(found, Path(values["plot"]))
    print(json.dumps(document(found), ensure_ascii=False))
