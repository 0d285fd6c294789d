"""``python -m paceline.bench.forced_cells``: adaptive depth against plain decoding under forced acceptance.

Every cell has a number of rows and a rate at which proposals are accepted by coin, whatever the text. The drafter
always proposes and costs nothing, so that only windows and the choice of depth matter. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from ..core.batch import Draft, RoundBatch
from ..core.config import EngineConfig
from ..core.request import SamplingParams
from ..draft.base import Constraints, DraftProvider, DraftRows, DrawPort, NullDrafter, TargetView
from ..engine.build import Extras, assemble
from ..engine.engine import Engine
from ..engine.frontend import Prompt
from ..engine.llm import LLM
from ..models.artifact import open_artifact
from ..models.binding import load_target
from ..sampling.forced import CoinAcceptance
from .pairs import Bound, interleaved, speedup

PLAIN, ADAPTIVE = "plain", "adaptive"


class TirelessDrafter(DraftProvider):
    """Proposes the newest token again and again: always as much as it is asked for.

    It is asked when it is to draft and cannot preview: what it proposes is never right, so that comparing it with the
    draws of plain rounds would contradict the coins.
    """

    id = "tireless"

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        return _TirelessRows()


class _TirelessRows(DraftRows):
    lags = True

    def draft(self, batch: RoundBatch) -> Draft:
        pairs = zip(batch.rows, batch.depths, strict=True)
        return Draft.from_lists([[row.pending] * depth for row, depth in pairs])


@dataclass(frozen=True)
class Cell:
    """``speedup``: adaptive over plain; ``depth``: mean proposals per round, ``accepted``: share of them."""

    rows: int
    rate: float
    speedup: Bound | None
    depth: float
    accepted: float


def open_arm(options: argparse.Namespace, drafter: DraftProvider, coins: CoinAcceptance) -> LLM:
    """An engine with weights and KV of its own."""
    artifact = open_artifact(options.model)
    config = EngineConfig.build(
        model=options.model,
        dtype=options.dtype,
        device="cpu",
        max_num_seqs=max(options.rows),
        spec_tokens=options.depth,
        kv_cache_tokens=max(options.rows) * 1024,
    )
    target = load_target(artifact, options.dtype, "cpu", None)
    extras = Extras(identity=artifact.identity, forced=coins)
    engine: Engine = assemble(config, target, artifact.eos_ids(), drafter=drafter, extras=extras)
    return LLM.from_engine(engine)


def measure(options: argparse.Namespace) -> list[Cell]:
    """All cells; plain and adaptive in turns, after one run of each that is not counted."""
    coins = CoinAcceptance(0.0, "cpu")
    with ExitStack() as stack:
        arms = {
            PLAIN: stack.enter_context(open_arm(options, NullDrafter(), coins)),
            ADAPTIVE: stack.enter_context(open_arm(options, TirelessDrafter(), coins)),
        }
        return [_cell(arms, coins, rows, rate, options) for rows in options.rows for rate in options.rates]


def _cell(arms: dict[str, LLM], coins: CoinAcceptance, rows: int, rate: float, options: argparse.Namespace) -> Cell:
    coins.set_rate(rate)
    prompts = [Prompt(None, tuple(range(100 + 50 * row, 228 + 50 * row))) for row in range(rows)]
    pairs: list[list[tuple[float, float]]] = []
    before = arms[ADAPTIVE].stats()
    for place in range(options.prompts + 1):
        entry = []
        for repeat in range(options.repeats):
            seconds = {}
            for arm in interleaved(list(arms), repeat):
                params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True, seed=place)
                outputs = arms[arm].generate(prompts, params)
                if any(output.error is not None for output in outputs):
                    raise RuntimeError(f"a request failed: {[output.error for output in outputs]}")
                firsts = [output.metrics.time_to_first_token or 0.0 for output in outputs]
                seconds[arm] = max(output.metrics.total_time for output in outputs) - max(firsts)
            entry.append((seconds[PLAIN], seconds[ADAPTIVE]))
        if place:  # the first is the warm-up
            pairs.append(entry)
    after = arms[ADAPTIVE].stats()
    drafted = after.num_draft_tokens - before.num_draft_tokens
    rounds = max(1, sum(after.depth_histogram.values()) - sum(before.depth_histogram.values()))
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    return Cell(rows, rate, speedup(pairs), drafted / rounds, accepted / drafted if drafted else 0.0)


def table(cells: Sequence[Cell]) -> str:
    lines = ["| rows | forced rate | adaptive / plain | proposals a round | accepted |", "|---|---|---|---|---|"]
    for cell in cells:
        bound = cell.speedup
        shown = "-" if bound is None else f"{bound.value:.2f} [{bound.low:.2f}, {bound.high:.2f}]"
        lines.append(f"| {cell.rows} | {cell.rate:g} | {shown} | {cell.depth:.2f} | {cell.accepted:.0%} |")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.forced_cells", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0, 0.3, 0.6, 0.8, 0.95])
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, the worst cell and one JSON line."""
    options = parse(arguments)
    started = time.perf_counter()
    cells = measure(options)
    print(table(cells))
    worst = min((cell for cell in cells if cell.speedup is not None), key=lambda cell: cell.speedup.value)  # type: ignore[union-attr]
    print(f"worst: {worst}")
    document = {
        "settings": vars(options),
        "seconds": round(time.perf_counter() - started, 1),
        "cells": [asdict(cell) for cell in cells],
    }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
