"""``python -m paceline.bench.schemas``: JSON schemas on a real model, with and without speculation, in batches.

Every answer must fit its schema unless its length ran out, and equal the plain one. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.params import SamplingParams
from ..engine.llm import LLM
from ..engine.outputs import RequestOutput
from .schema_set import schemas, violations

_ASK = "Give me an example as JSON that fits this schema: "


@dataclass(frozen=True)
class Ask:
    """One request: ``schema``, the messages that ask for it, and its options."""

    schema: dict[str, Any]
    messages: list[dict[str, str]]
    params: SamplingParams


@dataclass(frozen=True)
class Served:
    """Answers of one engine to all requests, and the seconds they took. ``drafter``: its id."""

    drafter: str
    outputs: list[RequestOutput]
    seconds: float


def asks(count: int, seeds: int, max_tokens: int) -> list[Ask]:
    """``count`` schemas times ``seeds`` seeds, those of one schema side by side."""
    return [
        Ask(
            schema,
            [{"role": "user", "content": _ASK + json.dumps(schema)}],
            SamplingParams(max_tokens=max_tokens, temperature=0.8, seed=seed, structured_outputs={"json": schema}),
        )
        for schema in schemas()[:count]
        for seed in range(seeds)
    ]


def serve(requests: Sequence[Ask], method: str, batch: int, settings: dict[str, Any]) -> Served:
    """Answer all requests on a fresh engine; the first one warms it up and is answered again."""
    with LLM(spec_method=method, max_num_seqs=batch, **settings) as llm:
        llm.chat([requests[0].messages], [requests[0].params])
        start = time.perf_counter()
        outputs = llm.chat([ask.messages for ask in requests], [ask.params for ask in requests])
        return Served(llm.info()["drafter"], outputs, time.perf_counter() - start)


def faults(requests: Sequence[Ask], served: Served) -> list[str]:
    """Answers that do not fit their schema although their length did not run out."""
    found = []
    for place, (ask, output) in enumerate(zip(requests, served.outputs, strict=True)):
        if output.finish_reason == "length":
            continue
        if output.finish_reason != "stop":
            found.append(f"{served.drafter} {place}: {output.finish_reason} ({output.error})")
            continue
        try:
            found += [f"{served.drafter} {place}: {line}" for line in violations(json.loads(output.text), ask.schema)]
        except ValueError as error:
            found.append(f"{served.drafter} {place}: {error}: {output.text!r}")
    return found


def differences(plain: Served, other: Served) -> list[str]:
    """Requests whose ids, text or finish reason depend on speculation."""
    pairs = zip(plain.outputs, other.outputs, strict=True)
    return [f"{place}: {a.text!r} became {b.text!r}" for place, (a, b) in enumerate(pairs) if a.outputs != b.outputs]


def summary(served: Served) -> dict[str, float | int | str]:
    """Figures of one engine: requests, tokens, forwards after the prefill, tokens per forward of a row, seconds."""
    figures = [output.metrics.speculative_decoding for output in served.outputs]
    forwards = sum(figure.forwards for figure in figures)
    tokens = sum(len(output.token_ids) for output in served.outputs)
    return {
        "drafter": served.drafter,
        "requests": len(served.outputs),
        "cut_by_length": sum(output.finish_reason == "length" for output in served.outputs),
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": sum(f.tokens_per_forward * f.forwards for f in figures) / max(1, forwards),
        "drafted": sum(figure.num_draft_tokens for figure in figures),
        "accepted": sum(figure.num_accepted_draft_tokens for figure in figures),
        "seconds": served.seconds,
        "tokens_per_second": tokens / served.seconds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if all answers fit and are equal, else 1."""
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.schemas", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", default="auto", help="drafter kind of the speculative run")
    parser.add_argument("--spec-tokens", type=int, default=8)
    parser.add_argument("--schemas", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args(arguments)
    settings = {"model": options.model, "dtype": options.dtype, "device": options.device}
    if options.threads is not None:
        settings["num_threads"] = options.threads
    requests = asks(options.schemas, options.seeds, options.max_tokens)
    plain = serve(requests, "none", options.batch, settings)
    drafted = serve(requests, options.method, options.batch, settings | {"spec_tokens": options.spec_tokens})
    found = faults(requests, plain) + faults(requests, drafted)
    unequal = differences(plain, drafted)
    for line in (*found, *unequal):
        print(line)
    runs = [summary(plain), summary(drafted)]
    print(json.dumps({"faults": len(found), "unequal": len(unequal), "runs": runs}))
    return 1 if found or unequal or not requests else 0


if __name__ == "__main__":
    raise SystemExit(main())
