"""The tiny models: real artifacts, equal for equal records, with text that wanders and repeats."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.core.request import SamplingParams
from paceline.testing.models import FAMILIES, TinyModel, tiny_model
from paceline.testing.reference import reference
from paceline.testing.tokenizer import IM_END, TOKENIZER_SIZE

PROMPT = tuple(range(20, 32))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_in_transformers_with_its_own_type(family: str) -> None:
    path = tiny_model(family)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert json.loads((path / "config.json").read_text())["model_type"] == family
    assert model.config.vocab_size == TOKENIZER_SIZE
    assert model.generation_config.eos_token_id == [IM_END]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_wanders_and_repeats(family: str) -> None:
    tokens = [
        reference(tiny_model(family)).run((n, *PROMPT), SamplingParams(temperature=0, max_tokens=48)).tokens
        for n in range(4, 7)
    ]
    distinct = [len(set(run)) / len(run) for run in tokens if len(run) > 20]
    pairs = [pair for run in tokens for pair in pairwise(run)]
    assert max(distinct) > 0.3, "some text has variety"
    assert len(set(pairs)) < len(pairs), "some pair of tokens returns, so that lookup has something to find"


def test_equal_records_give_equal_weights_and_other_seeds_others() -> None:
    first, again = tiny_model(TinyModel(seed=5)), tiny_model(TinyModel(seed=5))
    other = tiny_model(TinyModel(seed=6))
    assert first == again
    weights = load_file(first / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights[0].keys() == weights[1].keys()
    assert all(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_built_model_does_not_depend_on_the_directory_or_what_was_drawn_before(tmp_path: Path) -> None:
    torch.manual_seed(123)
    elsewhere = tiny_model(TinyModel(), tmp_path)
    here, there = (load_file(p / "model.safetensors") for p in (tiny_model(), elsewhere))
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_shards_hold_the_weights_of_the_single_file() -> None:
    single, sharded = tiny_model(TinyModel()), tiny_model(TinyModel(shards=3))
    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(set(index.values()))
    assert len(files) >= 3
    parts = {name: tensor for file in files for name, tensor in load_file(sharded / file).items()}
    whole = load_file(single / "model.safetensors")
    assert parts.keys() == whole.keys() == index.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="nonesuch"):
        tiny_model("nonesuch")


def test_the_tokenizer_round_trips_text_and_knows_chat() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    text = "The people there, 1234 times: naïve 🙂 tabs\tand\n\nlines"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == TOKENIZER_SIZE
    assert len(tokenizer.encode(" the people of the other")) < len(" the people of the other")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(chat)[-1] != IM_END and IM_END in tokenizer.encode(chat)
