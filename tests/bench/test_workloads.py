"""Reading prompt files, and telling copies from free text and from loops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.workloads import (
    COPY_HEAVY,
    FREE,
    MIXED,
    REPETITIVE,
    BenchPrompt,
    ngrams,
    overlap,
    read_workload,
    take_evenly,
)
from paceline.core.errors import RequestError


def test_what_ships_is_read_and_named_once() -> None:
    prompts = [*read_workload("copy"), *read_workload("prose")]
    assert len({prompt.name for prompt in prompts}) == len(prompts) >= 30
    assert {prompt.source for prompt in prompts} == {"copy", "prose"}


def test_five_kinds_of_work_ship_with_eight_prompts_each() -> None:
    work = {name: read_workload(name) for name in MIXED}
    assert len({prompt.group for prompts in work.values() for prompt in prompts}) == len(MIXED) == 5
    assert all(len(prompts) >= 8 for prompts in work.values())


def _write(path: Path, *entries: object) -> str:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + "\n", "utf-8")
    return str(path)


def test_every_format_gives_one_message(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "mixed.jsonl",
        {"question_id": 7, "category": "writing", "turns": ["first turn", "second turn"]},
        {"task_id": "HumanEval/0", "prompt": "def f():\n    '''one'''\n"},
        {"question": "How many?", "answer": "#### 3"},
        {"name": "mine", "task": "edit", "prompt": "Change it."},
    )
    first, second, third, fourth = read_workload(path)
    assert (first.name, first.group, first.text) == ("7", "writing", "first turn")
    assert second.name == "HumanEval/0"
    assert second.text.endswith("```python\ndef f():\n    '''one'''\n```")
    assert (third.name, third.text) == ("3", "How many?")
    assert fourth == BenchPrompt("mine", "mixed", "edit", "Change it.")


def test_a_category_keeps_its_lines(tmp_path: Path) -> None:
    entries = [{"category": kind, "turns": [f"about {kind}"]} for kind in ("qa", "rag", "qa")]
    path = _write(tmp_path / "some.jsonl", *entries)
    assert [prompt.text for prompt in read_workload(f"{path}:qa")] == ["about qa", "about qa"]
    with pytest.raises(RequestError, match="no prompt of category 'poems'"):
        read_workload(f"{path}:poems")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json}\n", "line 1 is not JSON"),
        ('{"turns": []}\n', "line 1 holds no turns"),
        ('{"prompt": "a"}\n{"prompt": "  "}\n', "line 2 holds no turns"),
        ("[1]\n", "line 1 holds no turns"),
        ("\n", "holds no prompt"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(RequestError, match=message):
        read_workload(str(path))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RequestError, match=r"nowhere\.jsonl cannot be read"):
        read_workload("nowhere.jsonl")


def test_a_limit_takes_from_all_over_the_file() -> None:
    prompts = [BenchPrompt(str(n), "file", "", "text") for n in range(10)]
    assert [prompt.name for prompt in take_evenly(prompts, 3)] == ["0", "3", "6"]
    assert take_evenly(prompts, None) == take_evenly(prompts, 99) == prompts


def test_a_copy_is_copy_heavy() -> None:
    text = list(range(50))
    shares = overlap(text, text[10:40])
    assert (shares.copied, shares.distinct, shares.kind) == (1.0, 1.0, COPY_HEAVY)


def test_new_text_is_free() -> None:
    shares = overlap(range(50), range(100, 150))
    assert (shares.copied, shares.reused, shares.kind) == (0.0, 0.0, FREE)


def test_a_loop_is_no_copy() -> None:
    loop = [1, 2, 3, 4, 5] * 10
    shares = overlap(loop, loop)
    assert shares.copied == shares.reused == 1.0
    assert shares.kind == REPETITIVE


def test_the_own_tokens_of_an_output_can_be_found_only_behind_them() -> None:
    once = [1, 2, 3, 4, 5, 6]
    assert overlap([], once).reused == 0.0
    assert overlap([], once * 2).reused == pytest.approx(3 / 9)


@pytest.mark.parametrize("count", range(4))
def test_an_output_without_a_gram_is_free(count: int) -> None:
    assert overlap(range(9), range(count)).kind == FREE


_IDS = st.lists(st.integers(0, 3), max_size=40)


@given(_IDS, _IDS)
def test_shares_agree_with_each_other(prompt: list[int], output: list[int]) -> None:
    shares = overlap(prompt, output)
    assert all(0.0 <= share <= 1.0 for share in (shares.copied, shares.distinct, shares.reused))
    assert shares.reused >= 1 - shares.distinct * (1 - shares.copied) - 1e-9 or not ngrams(output)
    if shares.kind == COPY_HEAVY:
        assert shares.reused >= 0.5 - 1e-9
