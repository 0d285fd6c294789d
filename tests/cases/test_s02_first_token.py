"""S02: the token drawn at the end of prefill is delivered, counted, tested for EOS, and the same in both modes."""

from __future__ import annotations

import pytest
import torch
from tests.support.tiny import FAMILY, decoder, drafter, greedy, serve

from paceline.models.artifact import open_artifact
from paceline.models.binding import load_target
from paceline.testing.harness import Job, Setup, compare, open_engine, run_jobs
from paceline.testing.models import tiny_model

CHUNK = 16
LENGTHS = (1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple((7 * place + length) % 300 + 4 for place in range(length))


@pytest.mark.parametrize("name", ["none", "D-self", "D-lookup"])
@pytest.mark.parametrize("max_tokens", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_s02_exactly_the_tokens_asked_for(length: int, max_tokens: int, name: str) -> None:
    jobs = [Job("job", prompt_of(length), greedy(max_tokens))]
    served = serve(Setup(rows=1, chunk=CHUNK), jobs, drafter(name))
    assert compare(jobs, decoder(), served) == []
    assert len(served["job"].tokens) == served["job"].generated == max_tokens


@pytest.mark.parametrize("name", ["none", "D-self", "D-lookup"])
@pytest.mark.parametrize("length", LENGTHS)
def test_s02_a_first_token_that_is_eos_ends_an_empty_answer(length: int, name: str) -> None:
    first = decoder().run(prompt_of(length), greedy(1)).draws[0]
    jobs = [Job("job", prompt_of(length), greedy(8))]
    got = serve(Setup(rows=1, chunk=CHUNK), jobs, drafter(name), eos_ids=(first,))["job"]
    assert (got.tokens, got.bursts, got.reason, got.generated) == ([], [], "stop", 1)


def first_logits(name: str, length: int) -> torch.Tensor:
    """Float32 logits that the first token of a request was drawn from."""
    target = load_target(open_artifact(str(tiny_model(FAMILY))), "float32", "cpu", None)
    seen: list[torch.Tensor] = []
    original = target.logits

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(original(hidden))
        return seen[-1]

    target.logits = logits  # type: ignore[method-assign]
    with open_engine(target, (), Setup(rows=1, chunk=CHUNK), drafter(name)) as engine:
        run_jobs(engine, [Job("job", prompt_of(length), greedy(4))])
    return seen[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_s02_the_first_logits_are_bit_equal_with_and_without_drafter(length: int) -> None:
    plain, drafted = first_logits("none", length), first_logits("D-self", length)
    assert plain.dtype == torch.float32 and plain.shape[0] == 1
    assert torch.equal(plain, drafted)
