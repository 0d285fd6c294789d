"""S15: log-probabilities of long prompts do not depend on chunks, neighbours or speculation."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.equality.test_features_llama import SINGLE, llama, target

from paceline.core.params import SamplingParams
from paceline.testing.features import open_llm
from paceline.testing.harness import Setup
from paceline.testing.models import tiny_model
from paceline.testing.workload import make_prompt

LENGTHS = (300, 511, 512, 513, 640, 777, 900, 1000)
PARAMS = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=2)


def prompts() -> list[tuple[int, ...]]:
    return [make_prompt(number, length, 320) for number, length in enumerate(LENGTHS)]


@functools.cache
def expected() -> list[Any]:
    """Log-softmax [L - 1, V] of every prompt, each in one forward of the ``transformers`` model."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float64).eval()
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, :-1] for prompt in prompts()]
    return [torch.log_softmax(rows, dim=-1) for rows in logits]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("method", ["none", "ngram"])
def test_s15_values_equal_those_of_one_forward(method: str, together: bool) -> None:
    setup = Setup(rows=8 if together else 1, chunk=256, method=method)
    with open_llm(target(), llama().eos_ids, setup, None, llama().tokenizer) as llm:
        outputs = llm.generate([list(prompt) for prompt in prompts()], PARAMS)
    for prompt, output, values in zip(prompts(), outputs, expected(), strict=True):
        entries = output.prompt_logprobs
        assert entries is not None and len(entries) == len(prompt) and entries[0] is None
        for place in range(1, len(prompt)):
            entry, row = entries[place], values[place - 1]
            assert entry is not None and prompt[place] in entry
            assert all(abs(entry[i].logprob - float(row[i])) < SINGLE for i in entry)
            assert entry[prompt[place]].rank == 1 + int((row > row[prompt[place]]).sum())
