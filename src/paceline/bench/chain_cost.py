"""``python -m paceline.bench.chain_cost``: cost per round of penalties, bans, filters and draws, by size.

The same rows without any option show what a request pays that asks for none. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ..core.params import SamplingParams
from ..sampling.draw import draw
from ..sampling.params import DrawParams
from ..sampling.processors.chain import RowProcessor, apply_processors
from ..sampling.processors.settings import DrySettings, ProcessorSettings

ROWS = (1, 8, 40)
VOCABULARIES = (49_152, 151_936)
_HISTORY = 512

FULL = ProcessorSettings(
    logit_bias=dict.fromkeys(range(100, 132), 1.0),
    bad_words=((7, 8), (9,)),
    no_repeat_ngram_size=4,
    min_tokens=4096,
    stop_ids=(2,),
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    dry=DrySettings(0.8),
)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02)
PLAIN = SamplingParams(temperature=0.8)
GREEDY = SamplingParams(temperature=0.0)


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median of several runs after one that is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(rows: int, vocab: int, repeats: int) -> dict[str, float | int]:
    """Milliseconds per round of ``rows`` windows of one position over ``vocab`` float32 logits."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3
    chance = torch.Generator().manual_seed(1)
    histories = torch.randint(3, 2000, (rows, _HISTORY), generator=chance).tolist()
    processors = [RowProcessor(FULL, history) for history in histories]
    nobody: list[RowProcessor | None] = [None] * rows
    windows: list[list[int]] = [[] for _ in range(rows)]

    def drawn(options: SamplingParams) -> float:
        params = DrawParams.of([options] * rows, list(range(rows)), [5] * rows)
        return _milliseconds(lambda: draw(logits, params), repeats)

    return {
        "rows": rows,
        "vocabulary": vocab,
        "no_processors_ms": _milliseconds(lambda: apply_processors(logits, nobody, windows), repeats),
        "all_processors_ms": _milliseconds(lambda: apply_processors(logits, processors, windows), repeats),
        "greedy_ms": drawn(GREEDY),
        "sampled_ms": drawn(PLAIN),
        "filtered_ms": drawn(FILTERED),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all sizes on one thread."""
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.chain_cost", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--vocabularies", type=int, nargs="*", default=list(VOCABULARIES))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = [measure(rows, vocab, options.repeats) for vocab in options.vocabularies for rows in options.rows]
    for figures in found:
        print("  ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
