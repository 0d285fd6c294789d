"""Scripted edits of a text, line by line: words and lines inserted, deleted and replaced. Knows no tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

_WORDS = ("value", "count", "total", "item", "other", "result", "extra", "index", "maximum", "name", "limit", "buffer")


def edited_lines(lines: Sequence[str], every: int, seed: int) -> tuple[list[str], Counter[str]]:
    """The lines with one edit in ``every`` of them on average, and how many edits there are of each kind.

    Equal arguments give equal edits: half of them replace a word, the others insert or delete a word, or insert, delete
    or replace a whole line.
    """
    chance = random.Random(seed)
    names = list(_KINDS)
    weights = [weight for weight, _ in _KINDS.values()]
    done: Counter[str] = Counter()
    found: list[str] = []
    for line in lines:
        if chance.random() * every >= 1:
            found.append(line)
            continue
        name = chance.choices(names, weights)[0]
        found += _KINDS[name][1](line, chance)
        done[name] += 1
    return found, done


def _fresh_line(line: str, chance: random.Random) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return indent + " ".join(chance.choice(_WORDS) for _ in range(chance.randint(3, 8)))


def _replace_word(line: str, chance: random.Random) -> list[str]:
    words = line.split(" ")
    words[chance.randrange(len(words))] = chance.choice(_WORDS)
    return [" ".join(words)]


def _insert_word(line: str, chance: random.Random) -> list[str]:
    words = line.split(" ")
    words.insert(chance.randint(0, len(words)), chance.choice(_WORDS))
    return [" ".join(words)]


def _delete_word(line: str, chance: random.Random) -> list[str]:
    words = line.split(" ")
    del words[chance.randrange(len(words))]
    return [" ".join(words)]


def _insert_line(line: str, chance: random.Random) -> list[str]:
    return [line, _fresh_line(line, chance)]


def _delete_line(line: str, chance: random.Random) -> list[str]:
    return []


def _replace_line(line: str, chance: random.Random) -> list[str]:
    return [_fresh_line(line, chance)]


#: Kind of edit -> its share and what it makes of a line.
_KINDS: dict[str, tuple[float, Callable[[str, random.Random], list[str]]]] = {
    "word replaced": (0.5, _replace_word),
    "word inserted": (0.1, _insert_word),
    "word deleted": (0.1, _delete_word),
    "line inserted": (0.1, _insert_line),
    "line deleted": (0.1, _delete_line),
    "line replaced": (0.1, _replace_line),
}
