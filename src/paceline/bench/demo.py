"""``python -m paceline.bench.demo``: real prompts, decoded plainly and speculatively by one engine, side by side.

Prints a table and, as the last line, one JSON document. It measures; it tunes nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import PacelineError
from ..core.request import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from ..engine.llm import LLM
    from ..engine.outputs import RequestOutput

_PROMPTS = Path(__file__).parent / "prompts" / "demo.jsonl"


@dataclass(frozen=True)
class DemoPrompt:
    """A user's message and the most tokens its answer may take."""

    name: str
    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Comparison:
    """One prompt, decoded both ways. Speeds are tokens per second after the first token, medians over the repeats.

    ``acceptance_rate``: accepted / drafted proposals. ``equal``: token ids and finish reason are the same in every run.
    """

    name: str
    tokens: int
    finish_reason: str
    plain_tokens_per_second: float
    tokens_per_second: float
    tokens_per_forward: float
    acceptance_rate: float
    acceptance_by_position: tuple[float, ...]
    equal: bool
    text: str

    @property
    def speedup(self) -> float:
        if not self.plain_tokens_per_second:
            return 0.0
        return self.tokens_per_second / self.plain_tokens_per_second


def read_prompts(path: Path = _PROMPTS) -> list[DemoPrompt]:
    """The prompts of a .jsonl file with ``name``, ``prompt`` and ``max_tokens`` on each line."""
    return [DemoPrompt(**json.loads(line)) for line in path.read_text("utf-8").splitlines() if line.strip()]


def compare(llm: LLM, prompts: Sequence[DemoPrompt], repeat: int = 1) -> Iterator[Comparison]:
    """Answer every prompt greedily, plain and speculative in turns so that both see the same machine."""
    for item in prompts:
        ready = llm.encode_chat([{"role": "user", "content": item.prompt}])
        runs: dict[bool, list[RequestOutput]] = {False: [], True: []}
        for _ in range(repeat):
            for speculative in (False, True):
                params = SamplingParams(temperature=0.0, max_tokens=item.max_tokens, speculative=speculative)
                runs[speculative].extend(llm.generate([ready], params))
        yield _comparison(item.name, runs[False], runs[True])


def _comparison(name: str, plain: list[RequestOutput], speculative: list[RequestOutput]) -> Comparison:
    figures = speculative[0].metrics.speculative_decoding
    outcomes = {(output.token_ids, output.finish_reason) for output in (*plain, *speculative)}
    return Comparison(
        name=name,
        tokens=speculative[0].metrics.completion_tokens,
        finish_reason=str(speculative[0].finish_reason),
        plain_tokens_per_second=statistics.median(output.metrics.tokens_per_second for output in plain),
        tokens_per_second=statistics.median(output.metrics.tokens_per_second for output in speculative),
        tokens_per_forward=figures.tokens_per_forward,
        acceptance_rate=figures.draft_acceptance_rate,
        acceptance_by_position=figures.acceptance_by_position,
        equal=len(outcomes) == 1,
        text=speculative[0].text,
    )


def document(llm: LLM, results: Sequence[Comparison]) -> dict[str, Any]:
    """Everything as plain JSON."""
    info = llm.info()
    names = ("model", "dtype", "device", "num_threads", "exactness", "drafter", "spec_tokens")
    return {
        **{name: info.get(name) for name in names},
        "prompts": [asdict(result) | {"speedup": result.speedup} for result in results],
        "all_equal": all(result.equal for result in results),
    }


def table(results: Sequence[Comparison]) -> Table:
    """The comparison for a person."""
    from rich.table import Table

    title = "Plain and speculative decoding by the same engine, greedy, tokens per second"
    shown = Table(title=title, title_justify="left")
    shown.add_column("prompt", no_wrap=True)
    for heading in ("tokens", "plain/s", "spec/s", "gain", "per fwd", "accept", "equal"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        shown.add_row(
            result.name,
            str(result.tokens),
            f"{result.plain_tokens_per_second:.1f}",
            f"{result.tokens_per_second:.1f}",
            f"{result.speedup:.2f}x",
            f"{result.tokens_per_forward:.2f}",
            f"{result.acceptance_rate:.0%}",
            "yes" if result.equal else "NO",
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration. Exit code 1 if it cannot run, or if tokens differ where they are promised to be equal."""
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="demo, a directory, a .gguf file or a hub id")
    parser.add_argument("--dtype", default="auto", help="number format; auto takes what is fastest here")
    parser.add_argument("--repeat", type=int, default=1, help="runs per prompt and way; medians are shown")
    parser.add_argument("--prompts", type=Path, default=_PROMPTS, help="a .jsonl file of prompts")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except PacelineError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ..engine.llm import LLM
    from ..engine.progress import loading_bars

    console = Console()
    console.print(f"Loading {options.model} (the first time it is downloaded and converted) ...")
    with loading_bars(sys.stderr.isatty()) as progress:
        llm = LLM(options.model, dtype=options.dtype, progress=progress)
    with llm:
        info = llm.info()
        console.print(
            f"{info['model']} in {info['dtype']} on {info['device']}, drafter {info['drafter']} "
            f"(up to {info['spec_tokens']} tokens), exactness {info['exactness']}"
        )
        llm.generate("Warm up.", SamplingParams(temperature=0.0, max_tokens=8))
        results = []
        for result in compare(llm, read_prompts(options.prompts), max(1, options.repeat)):
            console.rule(result.name, align="left")
            console.print(result.text, markup=False, highlight=False)
            results.append(result)
        console.rule()
        console.print(table(results))
        report = document(llm, results)
    print(json.dumps(report))
    return 0 if report["all_equal"] or report["exactness"] != "bitwise" else 1


if __name__ == "__main__":
    raise SystemExit(main())
