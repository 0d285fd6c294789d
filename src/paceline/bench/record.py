"""Records acceptance traces from a real model: plain outputs, then what each model-free drafter would have proposed.

``python -m paceline.bench.record --out DIR`` writes one file per drafter: counts only, no text and no tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ..core import env

env.use_passive_waiting()

import torch  # noqa: E402

from ..core.batch import RoundBatch  # noqa: E402
from ..core.request import Request, SamplingParams  # noqa: E402
from ..core.row import Row  # noqa: E402
from ..draft.artifact import LoadRequest  # noqa: E402
from ..draft.base import TargetView  # noqa: E402
from ..draft.registry import DraftRegistry, default_registry  # noqa: E402
from .trace import SHIPPED, Trace, write_traces  # noqa: E402
from .workloads import MIXED, BenchPrompt, read_workload, take_evenly  # noqa: E402

if TYPE_CHECKING:
    from ..draft.base import DraftRows
    from ..engine.llm import LLM

SYNTHETIC = "one-layer (synthetic)"
SYNTHETIC_DEPTH = 8
#: Match lengths in a trace end here: longer ones are trusted alike.
LONGEST_MATCH = 24


@dataclass(frozen=True)
class Output:
    """One request decoded without speculation. ``ids`` without the ending EOS."""

    workload: str
    temperature: float
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Places:
    """Counts by place of the output, as in :class:`paceline.bench.trace.Trace`."""

    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    match: tuple[int, ...]


def decode_plain(llm: LLM, prompts: Sequence[BenchPrompt], temperatures: Sequence[float], tokens: int) -> list[Output]:
    """Decode every prompt once per temperature, with one seed for all."""
    outputs = []
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, max_tokens=tokens, seed=11)
        messages = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
        for prompt, answer in zip(prompts, llm.chat(messages, params), strict=True):
            ids = tuple(answer.outputs[0].token_ids)
            outputs.append(Output(prompt.group or prompt.source, temperature, tuple(answer.prompt_token_ids), ids))
    return outputs


def lookups(registry: DraftRegistry) -> list[str]:
    """Kinds that need no weights."""
    return [kind for kind in registry.kinds() if not registry.get(kind).artifact]


def record_lookup(kind: str, outputs: Sequence[Output], view: TargetView) -> Iterator[Trace]:
    """Traces of a drafter without weights, at its own greatest default depth."""
    loaded = default_registry().load(kind, LoadRequest(directory=None, view=view))
    for output in outputs:
        rows = loaded.provider.open(view, _NoDraws(), _NoGrammar())
        places = places_of(rows, output, loaded.num_draft_tokens)
        yield _trace(output, kind, loaded.num_draft_tokens, places)


def places_of(rows: DraftRows, output: Output, depth: int) -> Places:
    """What the drafter would propose after each token of the output but the last."""
    row = _row(output, depth)
    rows.open_row(row, None)
    batch = RoundBatch([row], torch.tensor([row.index]), [depth])
    proposed, accepted, matches = [], [], []
    for place in range(1, len(output.ids)):
        row.tokens.append(output.ids[place - 1])
        draft = rows.draft(batch)
        tokens = draft.to_lists()[0]
        proposed.append(len(tokens))
        accepted.append(_common(tokens, output.ids[place:]))
        matches.append(min(LONGEST_MATCH, draft.matches[0]) if draft.matches is not None else 0)
    rows.close_row(row)
    return Places(tuple(proposed), tuple(accepted), tuple(matches))


def synthesize(outputs: Sequence[Output], depth: int = SYNTHETIC_DEPTH) -> Iterator[Trace]:
    """Traces of a drafter of one layer that does not exist, from the outputs and keyed chance.

    A token is right with a chance that falls with its difficulty and with the number of proposals before it: 0.90 if it
    followed the same token before, 0.74 if it stood in the text before, else 0.52; each request shifts them by up to
    0.12, sampling takes 0.04 off. A hard token is hard wherever a proposal starts.
    """
    for number, output in enumerate(outputs):
        chance = Random(f"{number}:{output.workload}:{output.temperature}")
        shift = chance.uniform(-0.12, 0.08) - (0.04 if output.temperature else 0.0)
        rates = [min(0.97, max(0.05, rate + shift)) for rate in _familiarity(output)]
        draws = [chance.random() for _ in rates]
        accepted = []
        for place in range(1, len(rates)):
            right = 0
            while right < min(depth, len(rates) - place) and draws[place + right] < rates[place + right] ** (
                1 + 0.15 * right
            ):
                right += 1
            accepted.append(right)
        count = len(accepted)
        yield _trace(output, SYNTHETIC, depth, Places((depth,) * count, tuple(accepted), (0,) * count))


def _familiarity(output: Output) -> list[float]:
    """Per token of the output: 0.90, 0.74 or 0.52 (see :func:`synthesize`)."""
    text = [*output.prompt_ids, *output.ids]
    first = len(output.prompt_ids)
    singles, pairs = set(text[:first]), set(pairwise(text[:first]))
    found = []
    for place in range(first, len(text)):
        pair = (text[place - 1], text[place])
        found.append(0.90 if pair in pairs else 0.74 if text[place] in singles else 0.52)
        singles.add(text[place])
        pairs.add(pair)
    return found


def _trace(output: Output, drafter: str, depth: int, places: Places) -> Trace:
    return Trace(
        workload=output.workload,
        drafter=drafter,
        temperature=output.temperature,
        prompt_tokens=len(output.prompt_ids),
        depth=depth,
        free=drafter != SYNTHETIC,
        synthetic=drafter == SYNTHETIC,
        proposed=places.proposed,
        accepted=places.accepted,
        match=places.match,
    )


def _row(output: Output, depth: int) -> Row:
    params = SamplingParams(max_tokens=len(output.ids))
    request = Request("trace", output.prompt_ids, params, len(output.ids), eos_ids=(), seed=0, draft_cap=depth)
    return Row(request, 0, list(output.prompt_ids))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


class _NoDraws:
    """A lookup draws nothing."""

    def sample(self, *_: object) -> torch.Tensor:
        raise AssertionError("a drafter without weights drew a token")

    sample_device = sample


class _NoGrammar:
    def forced_tokens(self, row: Row, max_tokens: int) -> list[int]:
        return []


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.record", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", nargs="*", default=list(MIXED), help="workloads, as of `paceline bench decode`")
    parser.add_argument("--limit", type=int, default=8, help="most prompts of each workload")
    parser.add_argument("--max-tokens", type=int, default=176)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args(arguments)
    from ..engine.llm import LLM

    prompts = [prompt for spec in options.prompts for prompt in take_evenly(read_workload(spec), options.limit)]
    with LLM(options.model, dtype=options.dtype, spec_method="none", num_threads=options.threads) as llm:
        outputs = decode_plain(llm, prompts, (0.0, 0.7), options.max_tokens)
        vocab = len(llm.tokenizer)
    view = TargetView(vocab, 0, 0, 1 << 20, (), "cpu", options.dtype)
    write_all(outputs, view, options.out)


def write_all(outputs: Sequence[Output], view: TargetView, out: Path) -> None:
    """One file per drafter, and what was written as one line of JSON."""
    out.mkdir(parents=True, exist_ok=True)
    long = [output for output in outputs if len(output.ids) >= 16]
    written = {}
    for kind in lookups(default_registry()):
        write_traces(out / f"{kind}.jsonl", record_lookup(kind, long, view))
        written[kind] = len(long)
    write_traces(out / "synthetic.jsonl", synthesize(long))
    print(json.dumps({"bench": "record", "out": str(out), "traces": written, "left_out": len(outputs) - len(long)}))


if __name__ == "__main__":
    main()
