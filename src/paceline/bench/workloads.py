"""Prompts to measure on, and what their plain outputs are like: copied from the prompt, free, or going in circles.

Knows texts and token ids only: nothing of engines or times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import RequestError

BUILTIN = ("copy", "prose")
#: Five kinds of work of eight prompts or more each: name -> file and the task of its lines (``None`` = all).
_MIX = {
    "prose": ("prose", None),
    "summarise": ("mix", "summarise"),
    "code-edit": ("mix", "code edit"),
    "extract": ("mix", "extract"),
    "json": ("mix", "json"),
}
MIXED = tuple(_MIX)
COPY_HEAVY, FREE, REPETITIVE = "copy-heavy", "free", "repetitive"
CLASSES = (COPY_HEAVY, FREE, REPETITIVE)
NGRAM = 4
_PROMPTS = Path(__file__).parent / "prompts"
_CODE_TASK = "Complete this Python function. Answer with the whole function.\n\n```python\n{}\n```"


@dataclass(frozen=True)
class BenchPrompt:
    """One user message. ``source``: the file it came from; ``group``: the file's own category, if it names one."""

    name: str
    source: str
    group: str
    text: str


@dataclass(frozen=True)
class Overlap:
    """How an output relates to its prompt, in shares of 4-grams of token ids.

    - ``copied``: of the output's different 4-grams, those that stand in the prompt.
    - ``distinct``: different 4-grams / all 4-grams of the output; low values mean that it goes in circles.
    - ``reused``: of all 4-grams of the output, those seen before in prompt or output: what a lookup can find. It is at
      least ``1 - distinct * (1 - copied)``.
    """

    copied: float
    distinct: float
    reused: float

    @property
    def kind(self) -> str:
        """``copy-heavy``: at least half copied and at least half distinct, so that no loop passes for a copy."""
        if self.distinct < 0.5:
            return REPETITIVE
        return COPY_HEAVY if self.copied >= 0.5 else FREE


def overlap(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Overlap:
    """Shares of the output's 4-grams; an output too short to have one counts as free and distinct."""
    grams = ngrams(output_ids)
    if not grams:
        return Overlap(copied=0.0, distinct=1.0, reused=0.0)
    prompt = set(ngrams(prompt_ids))
    different = set(grams)
    seen = set(ngrams([*prompt_ids, *output_ids[: NGRAM - 1]]))
    reused = 0
    for gram in grams:
        reused += gram in seen
        seen.add(gram)
    return Overlap(
        copied=len(different & prompt) / len(different),
        distinct=len(different) / len(grams),
        reused=reused / len(grams),
    )


def ngrams(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """All runs of four ids, in order."""
    return [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]


def read_workload(spec: str) -> list[BenchPrompt]:
    """Prompts of ``copy`` or of a name of :data:`MIXED` (they ship with paceline), or of ``PATH[:CATEGORY]``.

    A file holds one JSON object a line with ``turns`` (the first is used), ``prompt`` or ``question``; ``CATEGORY``
    keeps the lines whose ``category`` or ``task`` is that. :class:`RequestError` says what is wrong with a file.
    """
    if spec in BUILTIN or spec in _MIX:
        name, task = _MIX.get(spec, (spec, None))
        return _read_file(_PROMPTS / f"{name}.jsonl", task)
    path, category = Path(spec), None
    if not path.exists() and ":" in spec:
        name, category = spec.rsplit(":", 1)
        path = Path(name)
    prompts = _read_file(path, category)
    if not prompts:
        raise RequestError("prompts", f"{path} holds no prompt" + (f" of category {category!r}" if category else ""))
    return prompts


def take_evenly(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """At most ``limit`` prompts at even distances, so that a short run sees every part of a sorted file."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    return [prompts[place * len(prompts) // limit] for place in range(limit)]


def _read_file(path: Path, category: str | None) -> list[BenchPrompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("prompts", f"{path} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse(path, number, line)
        if category is None or prompt.group == category:
            prompts.append(prompt)
    return prompts


def _parse(path: Path, number: int, line: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise RequestError("prompts", f"{path}, line {number} is not JSON: {error}") from error
    text = _message(entry) if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise RequestError("prompts", f"{path}, line {number} holds no turns, prompt or question")
    name = entry.get("name") or entry.get("task_id") or entry.get("question_id") or number
    group = entry.get("category") or entry.get("task") or ""
    return BenchPrompt(str(name), path.stem, str(group), text)


def _message(entry: dict[str, Any]) -> Any:
    turns = entry.get("turns")
    if isinstance(turns, list) and turns:
        return turns[0]
    if "task_id" in entry and isinstance(entry.get("prompt"), str):
        return _CODE_TASK.format(entry["prompt"].rstrip())
    return entry.get("prompt", entry.get("question"))
