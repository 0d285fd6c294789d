"""The parts of the measurement: each returns plain data and depends on no other part.

What the figures mean is in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core.errors import PacelineError
from ...engine.engine import Engine
from ...sampling.forced import rate_for
from .forward import ForwardStand, measure_forwards
from .idle import idle_figures, kernel_shares, steady_part, traced
from .rig import EngineKind, Rig
from .roofline import chain_step_bytes
from .settings import GpuSettings
from .streams import StreamFigures, measure_streams, run_streams
from .timing import captured, median_ms, on_cuda, peak_bytes


def bandwidth(rig: Rig) -> dict[str, Any]:
    return rig.bandwidth.document()


def forward(rig: Rig) -> dict[str, Any]:
    return measure_forwards(rig, rig.settings.batches)


def plain(rig: Rig) -> dict[str, Any]:
    """Plain decoding through the whole engine, by batch (P1), and what is left of the bandwidth."""
    engine = _ready(rig, "plain")
    cells = [_streams(rig, engine, rows) for rows in rig.settings.batches]
    context = rig.settings.prompt_tokens + rig.settings.tokens // 2
    for cell in cells:
        cell["floor_ms"] = rig.floor_ms(cell["rows"], context)
        cell["of_bandwidth"] = cell["floor_ms"] / cell["round_ms"]
        rig.plain_ms[cell["rows"]] = cell["ms_per_token"]
    return {"cells": cells, "memory": memory_of(engine, rig.settings.device)}


def memory_of(engine: Engine, device: str) -> dict[str, Any]:
    """Bytes that the engine planned, what was in use at most since it was opened, and what its graphs took of it."""
    info = engine.info()
    held, detail = peak_bytes(device)
    planned = info["memory"]
    found = {"planned": planned, "held": held, "of_planned": held / planned["total"], "graphs": info["graphs"]}
    return found | {"detail": detail}


def _plain_times(rig: Rig) -> dict[int, float]:
    """Milliseconds a token of an engine without a drafter, by batch; measured when nobody has yet."""
    if any(rows not in rig.plain_ms for rows in rig.settings.batches):
        plain(rig)
    return rig.plain_ms


def table(rig: Rig) -> dict[str, Any]:
    """Fixed depth and forced mean acceptance length against an engine without a drafter (P5)."""
    settings = rig.settings
    rate = rate_for(settings.length, settings.depth)
    rig.forced.set_rate(rate)
    plain_ms = _plain_times(rig)
    engine = _ready(rig, "fixed")
    cells = [_streams(rig, engine, rows) | {"plain_ms_per_token": plain_ms[rows]} for rows in settings.batches]
    memory = memory_of(engine, settings.device)
    return {
        "length": settings.length,
        "depth": settings.depth,
        "rate": rate,
        "cells": _compared(cells),
        "memory": memory,
    }


def grid(rig: Rig) -> dict[str, Any]:
    """Adaptive depth against an engine without a drafter, over batches and forced acceptance (P6)."""
    settings = rig.settings
    plain_ms = _plain_times(rig)
    engine = _ready(rig, "adaptive")
    cells = []
    for rows in settings.batches:
        for rate in settings.rates:
            rig.forced.set_rate(rate)
            cells.append(_streams(rig, engine, rows) | {"rate": rate, "plain_ms_per_token": plain_ms[rows]})
    return {"depth": settings.depth, "cells": _compared(cells)}


def draft(rig: Rig) -> dict[str, Any]:
    """Round times by depth, less the verify forward of that width: what drafting costs (P4)."""
    settings = rig.settings
    chosen = [rows for rows in settings.batches if rows in (1, 8, 32)] or [settings.batches[0]]
    depths = range(settings.depth + 1)
    verify = _verify_times(rig, chosen)
    rig.forced.set_rate(rate_for(settings.length, settings.depth))
    engine = _ready(rig, "fixed")
    cells = []
    for rows in chosen:
        rounds = [_streams(rig, engine, rows, speculative=n > 0, depth=n or None)["round_ms"] for n in depths]
        rest = rounds[0] - verify[rows, 0]
        cells += [
            {
                "rows": rows,
                "depth": depth,
                "round_ms": rounds[depth],
                "verify_ms": verify[rows, depth],
                "draft_ms_per_token": (rounds[depth] - verify[rows, depth] - rest) / depth if depth else 0.0,
            }
            for depth in depths
        ]
    step = chain_step_bytes(rig.device_drafter().layer.shape)
    return {"cells": cells, "step_bytes": step, "step_floor_ms": step / rig.bandwidth.reads * 1e3}


def _verify_times(rig: Rig, batches: Sequence[int]) -> dict[tuple[int, int], float]:
    """Milliseconds of the verify forward by rows and proposals. The target's KV memory changes hands for it."""
    settings = rig.settings
    rig.close()
    context = settings.prompt_tokens + settings.tokens // 2
    stand = ForwardStand(rig.target, max(batches), context, settings.depth + 1)
    times = {
        (rows, depth): median_ms(captured(partial(stand.logits, rows, depth + 1), settings.device), settings.device)
        for rows in batches
        for depth in range(settings.depth + 1)
    }
    stand.close()
    return times


def idle(rig: Rig) -> dict[str, Any]:
    """Share of a round in which the GPU waits at B = 1, and what it does, by what drafts (P2)."""
    if not on_cuda(rig.settings.device):
        raise PacelineError("the share of idle time is read off the GPU's own trace; this run has no GPU")
    rig.forced.set_rate(rate_for(rig.settings.length, rig.settings.depth))
    names: dict[str, EngineKind] = {"device drafter": "fixed", "plain": "plain", "host drafter": "host"}
    found: dict[str, Any] = {}
    for name, kind in names.items():
        engine = _ready(rig, kind)
        timed = measure_streams(engine, rig.prompts(1), rig.params())
        steady = steady_part(traced(partial(run_streams, engine, rig.prompts(1), rig.params())))
        kernels = kernel_shares(steady, timed.round_ms)
        found[name] = idle_figures(steady).document() | {"round_ms": timed.round_ms, "kernels": kernels}
    return found


def null(rig: Rig) -> dict[str, Any]:
    """Rounds of a model that costs nothing: plain, and with proposals from the device and from the host (P2)."""
    settings = rig.settings
    small = Rig(GpuSettings(shape="null", device=settings.device, dtype=settings.dtype, batches=(1,), tokens=400))
    names: dict[str, EngineKind] = {"plain": "plain", "device drafter": "fixed", "host drafter": "host"}
    found = {name: _streams(small, _ready(small, kind), 1) for name, kind in names.items()}
    small.close()
    return found


def peers(rig: Rig) -> dict[str, Any]:
    from .peer import measure_peer

    return measure_peer(rig.settings.shape, rig.settings.device, rig.settings.prompt_tokens)


def _ready(rig: Rig, kind: EngineKind) -> Engine:
    """An engine of this kind for which everything that happens once has happened: compilation for prefill sizes, the
    smallest and largest batch."""
    engine = rig.engine(kind)
    for rows in {1, max(rig.settings.batches)}:
        run_streams(engine, rig.prompts(rows), rig.params())
    return engine


def _streams(
    rig: Rig, engine: Engine, rows: int, *, speculative: bool = True, depth: int | None = None
) -> dict[str, Any]:
    """Figures of the faster of two runs: a run that something disturbed says nothing about the engine."""
    runs: list[StreamFigures] = [
        measure_streams(engine, rig.prompts(rows), rig.params(speculative, depth)) for _ in range(2)
    ]
    return min(runs, key=lambda run: run.ms_per_token).document()


def _compared(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the speed-up over plain, and what it is of the tokens per round (efficiency)."""
    for cell in cells:
        cell["speedup"] = cell["plain_ms_per_token"] / cell["ms_per_token"]
        cell["efficiency"] = cell["speedup"] / cell["acceptance_length"]
    return cells
