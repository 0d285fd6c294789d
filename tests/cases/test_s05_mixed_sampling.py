"""S05: one meaning of greedy everywhere, and every row of a mixed batch follows its own settings."""

from __future__ import annotations

import pytest
from tests.support.tiny import decoder, drafter, greedy, prompts, serve

from paceline.core.request import SamplingParams
from paceline.testing.harness import Job, Setup, compare

NAMES = ["none", "D-self", "D-err", "D-lookup"]
PROMPTS = prompts(8)


def make(name: str) -> object:
    return drafter(name, wrong_at=1 if name == "D-err" else None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-5, 1e-4])
def test_s05_tiny_temperatures(temperature: float, name: str) -> None:
    jobs = [
        Job(f"job-{n}", prompt, SamplingParams(max_tokens=32, temperature=temperature, seed=n))
        for n, prompt in enumerate(PROMPTS[:4])
    ]
    served = serve(Setup(rows=4), jobs, make(name))  # type: ignore[arg-type]
    assert compare(jobs, decoder(), served) == []
    if temperature <= 1e-5:
        plain = [list(decoder().run(job.prompt, greedy(32)).tokens) for job in jobs]
        assert [served[job.name].tokens for job in jobs] == plain


MIXED = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 5, "seed": 1},
    {"temperature": 1.0, "top_p": 0.8, "seed": 2},
    {"temperature": 1.3, "min_p": 0.1, "seed": 3},
    {"temperature": 1e-5, "top_p": 0.5, "seed": 4},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "seed": 5},
    {"temperature": 2.0, "seed": 2**64 - 1},
    {"temperature": 1e-4, "seed": 7},
)


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_s05_every_row_of_a_mixed_batch_is_itself_alone(name: str, device_round: bool) -> None:
    jobs = [
        Job(f"job-{n}", prompt, SamplingParams(max_tokens=32, **options))  # type: ignore[arg-type]
        for n, (prompt, options) in enumerate(zip(PROMPTS, MIXED, strict=True))
    ]
    setup = Setup(rows=8, device_round=device_round)
    served = serve(setup, jobs, make(name))  # type: ignore[arg-type]
    assert compare(jobs, decoder(), served) == []
    for job in jobs:
        assert serve(setup, [job], make(name))[job.name].tokens == served[job.name].tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{"temperature": 0.0, "top_p": 0.5}, {"temperature": 1.0, "top_k": 1, "seed": 5}])
def test_s05_filters_that_leave_one_token_are_greedy(options: dict[str, float], name: str) -> None:
    jobs = [Job("job", PROMPTS[0], SamplingParams(max_tokens=32, **options))]  # type: ignore[arg-type]
    served = serve(Setup(rows=1), jobs, make(name))  # type: ignore[arg-type]
    assert served["job"].tokens == list(decoder().run(PROMPTS[0], greedy(32)).tokens)
