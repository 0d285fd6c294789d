"""Requests for equality runs: prompts with and without repeats, every way of ending, rows that join and leave."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.request import SamplingParams
from .collect import ENDED, Behaviour
from .harness import Job
from .reference import PlainDecoder, PlainRun

#: Named ways of sampling; ``mixed`` gives every row another one.
SAMPLINGS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "top_p": [{"temperature": 0.8, "top_p": 0.9}],
    "top_k": [{"temperature": 0.8, "top_k": 12}],
    "min_p": [{"temperature": 1.0, "min_p": 0.06}],
    "mixed": [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.0, "top_p": 0.5},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 0.05, "min_p": 0.3},
    ],
}


@dataclass(frozen=True)
class _Plan:
    """One job of the workload. ``ends_at``: a stop id is chosen so that plain decoding stops at about that place."""

    prompt_tokens: int
    max_tokens: int
    after: tuple[int, int] | None = None
    ends_at: int | None = None
    behaviour: Behaviour = field(default_factory=Behaviour)
    speculative: bool = True
    num_draft_tokens: int | None = None


_PLANS = (
    _Plan(37, 24),
    _Plan(9, 30, ends_at=11),
    _Plan(70, 12),
    _Plan(1, 20, after=(0, 3)),
    _Plan(23, 25, after=(1, 5), behaviour=Behaviour(stop_after=7)),
    _Plan(64, 5, after=(0, 8), speculative=False),
    _Plan(12, 1),
    _Plan(3, 28, num_draft_tokens=2),
    _Plan(65, 18, after=(3, 4), behaviour=Behaviour(abort_after=6)),
    _Plan(30, 22, after=(7, 10), behaviour=Behaviour(raise_after=5)),
    _Plan(17, 40, after=(6, ENDED), ends_at=29),
    _Plan(100, 16, after=(9, 2)),
)
#: Rows of the engine -> number of jobs: more jobs than rows, so that rows leave and others take their places.
JOBS_PER_BATCH = {1: 2, 3: 6, 8: 12}


def workload(batch: int, sampling: str, decoder: PlainDecoder) -> list[Job]:
    """The jobs for an engine of ``batch`` rows. Equal arguments give equal jobs."""
    jobs = []
    for number, plan in enumerate(_PLANS[: JOBS_PER_BATCH[batch]]):
        kinds = SAMPLINGS[sampling]
        params = SamplingParams(
            max_tokens=plan.max_tokens,
            seed=1000 + number,
            speculative=plan.speculative,
            num_draft_tokens=plan.num_draft_tokens,
            **kinds[number % len(kinds)],
        )
        prompt = make_prompt(number, plan.prompt_tokens, decoder.vocab_size)
        if plan.ends_at is not None:
            params = ending_at(plan.ends_at, decoder.run(prompt, params), params)
        after = None if plan.after is None else (f"job-{plan.after[0]}", plan.after[1])
        jobs.append(Job(f"job-{number}", prompt, params, plan.behaviour, after))
    return jobs


def make_prompt(number: int, length: int, vocab_size: int) -> tuple[int, ...]:
    """A prompt without special ids; every other one repeats a phrase, so that lookup drafters find something."""
    chance = random.Random(number)
    phrase = [chance.randrange(4, vocab_size) for _ in range(length if number % 2 else max(3, length // 5))]
    return tuple((phrase * (length // len(phrase) + 1))[:length])


def ending_at(place: int, run: PlainRun, params: SamplingParams) -> SamplingParams:
    """``params`` with a stop id that ends ``run`` at ``place``, or before it at the last token that is new there."""
    fresh = [at for at, token in enumerate(run.tokens[: place + 1]) if token not in run.tokens[:at]]
    return replace(params, stop_token_ids=(run.tokens[fresh[-1]],))


def script_for(run: PlainRun, depth: int, accepts: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Rounds of proposals at full depth of which the target accepts ``accepts[r % len]`` (or as many as there are)."""
    rounds, place, turn = [], 1, 0
    while place < len(run.draws):
        proposal = list(run.draws[place : place + depth])
        right = min(accepts[turn % len(accepts)], len(proposal))
        if right < len(proposal):
            proposal[right] = (proposal[right] + 1) % vocab_size
        rounds.append(proposal)
        place += right + 1
        turn += 1
    return rounds
