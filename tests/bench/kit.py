"""A measurement made by hand: known times and tokens, no model."""

from __future__ import annotations

from typing import Any

from paceline.bench.arms import Run
from paceline.bench.decode import BatchRun, DecodeSettings, Measurement, Subject
from paceline.bench.peers import Trial
from paceline.bench.workloads import BenchPrompt, overlap
from paceline.core.stats import SpecStats
from paceline.engine.outputs import SpeculativeMetrics

TEXT = tuple(range(100, 121))
MACHINE = {
    "cpu": "a CPU",
    "cores": 2,
    "threads": 2,
    "cpu_features": ["avx2"],
    "libraries": {"torch": "2", "transformers": "5"},
}


def spec(accepted: list[int], depth: int, plain_rounds: int = 0) -> SpeculativeMetrics:
    """Figures of a request whose draft rounds all had ``depth`` proposals."""
    stats = SpecStats(
        drafted=depth * len(accepted),
        accepted=sum(accepted),
        rounds=len(accepted),
        plain_rounds=plain_rounds,
        target_calls=1 + len(accepted) + plain_rounds,
        acceptance_lengths=accepted,
        drafted_by_pos=[len(accepted)] * depth,
        accepted_by_pos=[sum(a > place for a in accepted) for place in range(depth)],
    )
    return SpeculativeMetrics.of(stats, depth)


def run(seconds: float, tokens: tuple[int, ...] = TEXT, figures: SpeculativeMetrics | None = None) -> Run:
    """A run that spent one second on its first token and ``seconds`` on the others."""
    return Run(tokens, len(tokens), 1.0 + seconds, 1.0, 1, figures)


def own(name: str, exactness: str = "bitwise") -> dict[str, Any]:
    return {"name": f"{name} float32", "own": True, "dtype": "float32", "exactness": exactness}


def peer(lookup: int | None) -> dict[str, Any]:
    name = f"transformers {'lookup ' if lookup else ''}float32"
    return {"name": name, "own": False, "dtype": "float32", "prompt_lookup_num_tokens": lookup}


def measurement() -> Measurement:
    """Two copied prompts, a free one and one that was left out; a drafter twice as fast as plain on the copies."""
    subjects = [subject("one", TEXT), subject("two", TEXT), subject("free", tuple(range(9))), subject("short", TEXT)]
    subjects[3].status = "answer of 1 tokens, fewer than 24"
    arms = [own("plain"), own("drafting"), peer(None), peer(5)]
    found = Measurement(DecodeSettings(repeats=2), MACHINE, arms, subjects)
    drafting = spec([3, 1, 3, 3], depth=3, plain_rounds=6)
    for place in range(3):
        found.runs["plain float32", place] = [run(4.0), run(6.0)]
        fast = 2.0 if place < 2 else 1.0
        found.runs["drafting float32", place] = [run(4.0 / fast, figures=drafting), run(6.0 / fast, figures=drafting)]
        found.runs["transformers float32", place] = [run(8.0), run(12.0)]
        found.runs["transformers lookup float32", place] = [run(5.0), run(7.5)]
    found.trials["float32"] = [Trial("sdpa", None, 0.4), Trial("eager", None, 0.5), Trial("sdpa", 5, 0.25)]
    found.batches = [BatchRun("plain float32", 0, 40, 8.0, 2.0, True), BatchRun("plain float32", 0, 40, 9.0, 3.0, True)]
    return found


def subject(name: str, prompt_ids: tuple[int, ...]) -> Subject:
    made = Subject(BenchPrompt(name, "file", "", "text"), prompt_ids)
    made.references["float32"] = run(5.0)
    made.overlap = overlap(prompt_ids, TEXT)
    return made
