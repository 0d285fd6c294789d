"""The plain loop: ends, budgets and counts, and that it is what ``transformers`` itself generates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from paceline.core.request import Request, SamplingParams
from paceline.testing.models import tiny_model
from paceline.testing.reference import PlainDecoder, plain_loop, reference

VOCAB = 8


def counting(tokens: list[int] | tuple[int, ...]) -> NDArray[np.float64]:
    """A model whose next token is always the last one plus one, modulo the vocabulary."""
    return np.eye(VOCAB)[(tokens[-1] + 1) % VOCAB]


def greedy(**options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **options)  # type: ignore[arg-type]


def test_the_budget_ends_a_run_with_length() -> None:
    run = plain_loop(counting, [0], greedy(max_tokens=3), [], 100)
    assert (run.tokens, run.draws, run.finish_reason, run.generated) == ((1, 2, 3), (1, 2, 3), "length", 3)


def test_an_eos_is_counted_but_not_delivered() -> None:
    run = plain_loop(counting, [0], greedy(max_tokens=9), [4], 100)
    assert (run.tokens, run.draws, run.finish_reason, run.generated) == ((1, 2, 3), (1, 2, 3, 4), "stop", 4)


def test_a_first_token_eos_gives_one_generated_token_and_nothing_delivered() -> None:
    run = plain_loop(counting, [0], greedy(max_tokens=9), [1, 5], 100)
    assert (run.tokens, run.finish_reason, run.generated) == ((), "stop", 1)


def test_an_eos_past_the_budget_is_never_drawn() -> None:
    run = plain_loop(counting, [0], greedy(max_tokens=3), [4], 100)
    assert (run.tokens, run.finish_reason, run.generated) == ((1, 2, 3), "length", 3)


def test_stop_ids_work_like_eos_and_ignore_eos_spares_the_models_only() -> None:
    params = greedy(max_tokens=9, stop_token_ids=[6], ignore_eos=True)
    assert plain_loop(counting, [0], params, [4], 100).draws == (1, 2, 3, 4, 5, 6)


def test_without_a_budget_the_context_is_the_budget() -> None:
    run = plain_loop(counting, [0, 0, 0], greedy(), [], 10)
    assert (len(run.tokens), run.finish_reason) == (7, "length")
    with pytest.raises(ValueError, match="do not fit"):
        plain_loop(counting, [0, 0, 0], greedy(max_tokens=8), [], 10)


def test_a_sampled_run_needs_a_seed() -> None:
    with pytest.raises(ValueError, match="seed"):
        plain_loop(counting, [0], SamplingParams(temperature=1.0, max_tokens=2), [], 10)


def test_options_that_the_loop_does_not_follow_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="frequency_penalty, logit_bias"):
        plain_loop(counting, [0], greedy(max_tokens=2, frequency_penalty=0.5, logit_bias={3: 1.0}), [], 10)


def test_a_stopping_consumer_cuts_the_run_and_takes_the_reason() -> None:
    run = plain_loop(counting, [0], greedy(max_tokens=9), [4], 100)
    cut = run.stopped_after(3)
    assert (cut.tokens, cut.finish_reason, cut.generated) == ((1, 2, 3), "stop", 3)
    assert run.stopped_after(4) is run, "the run ends before the consumer would stop"
    short = plain_loop(counting, [0], greedy(max_tokens=2), [], 100)
    assert short.stopped_after(2).finish_reason == "stop"


def test_the_oracles_record_holds_the_terminal_eos() -> None:
    decoder = PlainDecoder(counting, [4], 100, VOCAB)
    request = Request("r", (0,), greedy(max_tokens=9), 9, (4,), seed=77, draft_cap=4)
    assert decoder.recorded(request) == (1, 2, 3, 4)


def test_a_request_without_a_seed_is_recorded_under_the_seed_it_got() -> None:
    def flat(tokens: object) -> NDArray[np.float64]:
        return np.zeros(VOCAB)

    decoder = PlainDecoder(flat, [], 100, VOCAB)
    params = SamplingParams(max_tokens=20)
    request = Request("r", (0,), params, 20, (), seed=77, draft_cap=4)
    assert decoder.recorded(request) == decoder.run((0,), SamplingParams(max_tokens=20, seed=77)).tokens


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_runs_are_those_of_transformers_generate(family: str) -> None:
    path = tiny_model(family)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    decoder = reference(path)
    for prompt in ([5, 9, 200, 31], [77], list(range(40, 80))):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        theirs = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=40)[0, len(prompt) :].tolist()
        run = decoder.run(prompt, greedy(max_tokens=40))
        assert list(run.draws) == theirs
        assert run.lead > 1e-6, "a near tie would make the comparison meaningless"
