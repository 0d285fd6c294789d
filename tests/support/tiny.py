"""The cases' targets: tiny random models in float64, and plain text to feed them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from paceline.core.request import SamplingParams
from paceline.draft.base import DraftProvider
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.engine.engine import Engine
from paceline.testing.collect import Collector
from paceline.testing.drafters import EmptyDrafter, OracleDrafter, RandomDrafter
from paceline.testing.grid import target_of
from paceline.testing.harness import Job, Setup, open_engine, run_jobs
from paceline.testing.reference import PlainDecoder
from paceline.testing.workload import make_prompt

#: The target "T" of the cases and its plain loop.
FAMILY = "llama"


def decoder() -> PlainDecoder:
    return target_of(FAMILY)[1]


def engine_over(setup: Setup, drafter: DraftProvider | None, eos_ids: Sequence[int] | None = None) -> Any:
    """A running engine over T; without ``drafter`` it decodes plainly."""
    target, plain = target_of(FAMILY)
    opened: AbstractContextManager[Engine] = open_engine(
        target, plain.eos_ids if eos_ids is None else eos_ids, setup, drafter
    )
    return opened


def serve(
    setup: Setup, jobs: Sequence[Job], drafter: DraftProvider | None, eos_ids: Sequence[int] | None = None
) -> dict[str, Collector]:
    with engine_over(setup, drafter, eos_ids) as engine:
        return run_jobs(engine, jobs)


def drafter(name: str, wrong_at: int | None = None) -> DraftProvider | None:
    """D-self and D-oracle replay the plain run, D-bad proposes at random, D-lookup looks the text up."""
    if name == "none":
        return None
    if name == "D-bad":
        return RandomDrafter()
    if name == "D-lookup":
        return NgramDrafter()
    if name == "D-empty":
        return EmptyDrafter()
    return OracleDrafter(decoder().recorded, wrong_at)


def prompts(count: int, length: int = 9) -> list[tuple[int, ...]]:
    """Prompts that differ, half of them with repeats, the lengths around ``length``."""
    return [make_prompt(n, 2 + (n * 5 + length) % (2 * length), decoder().vocab_size) for n in range(count)]


def greedy(max_tokens: int | None, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **options)


def jobs_of(texts: Sequence[Sequence[int]], params: SamplingParams) -> list[Job]:
    return [Job(f"job-{n}", tuple(text), params) for n, text in enumerate(texts)]
