"""``python -m paceline.bench.adaptive``: adaptive depth against plain decoding and against every fixed depth.

Six kinds of text, one of which never repeats itself; interleaved runs of one request at a time, or (``--batch``) of
several requests of different kinds together. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.request import SamplingParams
from ..engine.frontend import Prompt
from ..engine.llm import LLM
from .arms import encode_prompt
from .pairs import Bound, interleaved, speedup
from .workloads import MIXED, read_workload, take_evenly

PLAIN, ADAPTIVE = "plain", "adaptive"
#: Sampled so hot that no text comes back: nothing that could be looked up is ever right.
RANDOM = "random"
_HOT = 2.0


@dataclass(frozen=True)
class Case:
    """One prompt of a workload and how it is decoded."""

    workload: str
    name: str
    ids: tuple[int, ...]
    params: SamplingParams


@dataclass
class Found:
    """``seconds``: (arm, place of the case) -> decode seconds per token of each repeat; ``tokens``: what was said."""

    cases: list[Case]
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    tokens: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def pairs(self, base: str, other: str, workload: str | None = None) -> list[list[tuple[float, float]]]:
        """Paired seconds per token of two arms, by case; of all workloads but the random one by default."""
        return [
            list(zip(self.seconds[base, place], self.seconds[other, place], strict=True))
            for place, case in enumerate(self.cases)
            if (case.workload == workload if workload else case.workload != RANDOM)
        ]

    def equal(self, arm: str) -> bool:
        return all(self.tokens[arm, place] == self.tokens[PLAIN, place] for place in range(len(self.cases)))


def open_arms(options: argparse.Namespace, stack: ExitStack) -> dict[str, LLM]:
    """One engine per arm over the same model."""
    rows = max(1, options.batch)
    common: dict[str, Any] = {"dtype": options.dtype, "max_num_seqs": rows, "kv_cache_tokens": 2048 * (1 + rows)}
    if options.threads:
        common["num_threads"] = options.threads
    arms = {PLAIN: {"spec_method": "none"}, ADAPTIVE: {"spec_method": options.method}}
    for depth in options.depths:
        arms[f"fixed {depth}"] = {"spec_method": options.method, "spec_tokens": depth, "spec_adaptive": False}
    return {name: stack.enter_context(LLM(options.model, **common, **settings)) for name, settings in arms.items()}


def choose_cases(tokenizer: Any, options: argparse.Namespace) -> list[Case]:
    cases = []
    for workload in (*options.workloads, RANDOM):
        source = "prose" if workload == RANDOM else workload
        params = SamplingParams(
            temperature=_HOT if workload == RANDOM else 0.0,
            max_tokens=options.max_tokens,
            ignore_eos=True,
            seed=7,
        )
        for prompt in take_evenly(read_workload(source), options.limit):
            cases.append(Case(workload, prompt.name, encode_prompt(tokenizer, prompt.text), params))
    return cases


def measure(arms: dict[str, LLM], cases: Sequence[Case], repeats: int) -> Found:
    """Every case on all arms one after the other, in turns; a first run of each arm is not counted."""
    found = Found(list(cases))
    for llm in arms.values():
        llm.generate([Prompt(None, cases[0].ids)], SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    for place, case in enumerate(cases):
        for repeat in range(repeats):
            for arm in interleaved(list(arms), repeat):
                output = arms[arm].generate([Prompt(None, case.ids)], case.params)[0]
                if output.error is not None:
                    raise output.error
                found.seconds.setdefault((arm, place), []).append(output.metrics.time_per_output_token or math.nan)
                found.tokens[arm, place] = tuple(output.token_ids)
    return found


def measure_together(arms: dict[str, LLM], cases: Sequence[Case], options: argparse.Namespace) -> Found:
    """All cases at once, ``--batch`` of them in rows at any time: the queue keeps the rows full, as a server's does.
    Seconds per token of the whole load, prefill included; the load is one case of the workload "mix"."""
    kept = sorted(
        (place for place, case in enumerate(cases) if case.workload != RANDOM),
        key=lambda place: (place % options.limit, place),
    )
    prompts = [Prompt(None, cases[place].ids) for place in kept]
    params = cases[kept[0]].params
    found = Found([Case("mix", "all", (), params)])
    for repeat in range(options.repeats + 1):
        for arm in interleaved(list(arms), repeat):
            start = time.perf_counter()
            outputs = arms[arm].generate(prompts, params)
            spent = time.perf_counter() - start
            failed = [output.error for output in outputs if output.error is not None]
            if failed:
                raise failed[0]
            if repeat:  # the first run of each is not counted
                count = sum(len(output.token_ids) for output in outputs)
                found.seconds.setdefault((arm, 0), []).append(spent / count)
            found.tokens[arm, 0] = tuple(token for output in outputs for token in output.token_ids)
    return found


@dataclass(frozen=True)
class Line:
    """One workload: every arm against plain, adaptive against the fixed depth that was best on it."""

    workload: str
    speedups: dict[str, Bound | None]
    best: str
    against_best: Bound | None


def summarise(found: Found, arms: Sequence[str]) -> list[Line]:
    """A line per workload, then one over all that repeat themselves."""
    names = list(dict.fromkeys(case.workload for case in found.cases))
    return [_line(found, arms, name) for name in ([*names, None] if len(names) > 1 else names)]


def _line(found: Found, arms: Sequence[str], workload: str | None) -> Line:
    speedups = {arm: speedup(found.pairs(PLAIN, arm, workload)) for arm in arms if arm != PLAIN}
    fixed = {arm: bound.value for arm, bound in speedups.items() if arm != ADAPTIVE and bound is not None}
    best = max(fixed, key=fixed.__getitem__, default=PLAIN)
    if fixed.get(best, 0.0) < 1.0:
        best = PLAIN  # depth 0 is a fixed depth too
    return Line(workload or "all", speedups, best, speedup(found.pairs(best, ADAPTIVE, workload)))


def table(lines: Sequence[Line], arms: Sequence[str]) -> str:
    """Markdown: speed-ups over plain with 95 percent bounds."""
    shown = [arm for arm in arms if arm != PLAIN]
    head = "| text | " + " | ".join(shown) + " | best fixed | adaptive / best fixed |"
    rows = [head, "|" + "---|" * (len(shown) + 3)]
    for line in lines:
        cells = [_cell(line.speedups[arm]) for arm in shown]
        rows.append("| " + " | ".join([line.workload, *cells, line.best, _cell(line.against_best)]) + " |")
    return "\n".join(rows)


def _cell(bound: Bound | None) -> str:
    return "-" if bound is None else f"{bound.value:.2f} [{bound.low:.2f}, {bound.high:.2f}]"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.adaptive", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--depths", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--workloads", nargs="*", default=list(MIXED))
    parser.add_argument("--limit", type=int, default=3, help="prompts per workload")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0, help="requests of different workloads at once; 0 = one by one")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and one JSON line."""
    options = parse(arguments)
    started = time.perf_counter()
    with ExitStack() as stack:
        arms = open_arms(options, stack)
        cases = choose_cases(arms[PLAIN].tokenizer, options)
        together = options.batch > 1
        found = measure_together(arms, cases, options) if together else measure(arms, cases, options.repeats)
    lines = summarise(found, list(arms))
    print(table(lines, list(arms)))
    plain = [seconds for (arm, _), runs in found.seconds.items() if arm == PLAIN for seconds in runs]
    document = {
        "settings": vars(options),
        "seconds": round(time.perf_counter() - started, 1),
        "plain_tokens_per_second": 1 / statistics.median(plain),
        "equal": {arm: found.equal(arm) for arm in arms},
        "lines": [asdict(line) for line in lines],
    }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
