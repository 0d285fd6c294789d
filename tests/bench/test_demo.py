"""The demonstration on a tiny model: every prompt both ways, equal tokens, one JSON document as the last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.demo import DemoPrompt, compare, main, read_prompts
from paceline.engine.llm import LLM
from paceline.testing.models import tiny_model


def test_the_prompts_that_ship() -> None:
    prompts = read_prompts()
    assert len({prompt.name for prompt in prompts}) == len(prompts) >= 3
    assert all(prompt.prompt and prompt.max_tokens > 0 for prompt in prompts)


def test_both_ways_are_run_and_compared() -> None:
    settings = {"dtype": "float64", "max_num_seqs": 1, "kv_cache_tokens": 512, "spec_tokens": 3}
    with LLM(str(tiny_model("llama")), **settings) as llm:
        (result,) = compare(llm, [DemoPrompt("copy", "the other the other the other", 24)], repeat=2)
        generation = llm.stats()
    assert result.equal
    assert result.tokens <= 24
    assert generation.finished == {result.finish_reason: 4}
    assert generation.num_drafts > 0  # speculation took part,
    assert generation.plain_rounds >= 2 * (result.tokens - 1)  # and so did plain decoding


def test_the_last_line_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"name": "one", "prompt": "the the the", "max_tokens": 6}) + "\n")
    model = str(tiny_model("llama"))
    assert main(["--model", model, "--dtype", "float32", "--prompts", str(prompts)]) == 0
    data = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert data["all_equal"]
    assert data["prompts"][0]["name"] == "one"
    assert data["dtype"] == "float32"


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/no/such/model"]) == 1
    assert capsys.readouterr().err.startswith("demo: /no/such/model")
