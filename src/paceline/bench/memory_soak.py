"""Resident memory of an engine: as planned against as measured, and whether thousands of short requests make it grow.

``python -m paceline.bench.memory_soak`` prints both and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from ..core import env

env.use_passive_waiting()

from ..core.request import SamplingParams  # noqa: E402
from ..engine.llm import LLM  # noqa: E402
from ..engine.memory import resident_bytes  # noqa: E402

_SAMPLE_EVERY = 100


def fill(llm: LLM, generator: random.Random) -> None:
    """Touch everything the plan counts: a full prefill chunk, and rounds with every row in use."""
    info = llm.info()
    rows, chunk = int(info["max_num_seqs"]), int(info["prefill_chunk"])
    room = min(int(info["kv_cache_tokens"]) // rows, int(info["max_model_len"])) - 17
    length = max(1, min(chunk, room))
    prompts = [_prompt(generator, length) for _ in range(rows)]
    llm.generate(prompts, SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True))


def _prompt(generator: random.Random, length: int) -> list[int]:
    """Low ids that every vocabulary has, with repetitions that a lookup finds."""
    words = [generator.randrange(5, 250) for _ in range(max(1, length // 3))]
    return (words * 4)[:length]


def soak(llm: LLM, requests: int, batch: int, generator: random.Random) -> list[int]:
    """Run short requests in batches; resident bytes after every hundred."""
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    samples = []
    for done in range(0, requests, batch):
        size = min(batch, requests - done)
        llm.generate([_prompt(generator, generator.randrange(4, 24)) for _ in range(size)], params)
        if (done + size) // _SAMPLE_EVERY > done // _SAMPLE_EVERY or done + size == requests:
            gc.collect()
            samples.append(resident_bytes())
    return samples


def growth(samples: Sequence[int]) -> int:
    """Bytes gained: mean of the last quarter of the samples less mean of the second quarter.

    The first quarter is left out: allocators and caches settle there.
    """
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    return round(sum(late) / len(late) - sum(early) / len(early))


def report(llm: LLM, before: int, requests: int, batch: int) -> dict[str, Any]:
    """Plan and measurement of one engine, in bytes. ``before``: resident before the engine was loaded."""
    generator = random.Random(5)
    plan = llm.info()["memory"]
    loaded = resident_bytes()
    fill(llm, generator)
    filled = resident_bytes()
    samples = soak(llm, requests, batch, generator)
    planned = plan["total"]
    return {
        "bench": "memory_soak",
        "model": llm.info()["model"],
        "dtype": llm.info()["dtype"],
        "before": before,
        "plan": plan,
        "planned_total": planned,
        "loaded": loaded,
        "filled": filled,
        "measured_over_planned": filled / planned,
        "requests": requests,
        "samples": samples,
        "growth": growth(samples),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--spec-method", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache-tokens", type=int)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args(arguments)
    import transformers.models.auto  # noqa: F401 - loaded by every engine; part of the process, not of the plan

    before = resident_bytes()
    with LLM(
        options.model,
        dtype=options.dtype,
        spec_method=options.spec_method,
        num_threads=options.threads,
        kv_cache_tokens=options.kv_cache_tokens,
    ) as llm:
        found = report(llm, before, options.requests, options.batch)
    for name in ("before", "planned_total", "loaded", "filled", "growth"):
        print(f"{name.replace('_', ' '):16}{found[name] / 1e6:10.1f} MB", file=sys.stdout)
    print(f"{'measured/planned':16}{found['measured_over_planned']:10.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
