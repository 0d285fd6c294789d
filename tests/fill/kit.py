"""A text that is decoded with spans: the loop of rounds without an engine, rows, and texts with scripted edits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.request import Request, SamplingParams
from paceline.core.round import RowResult
from paceline.core.row import Row
from paceline.engine.spans import RowSpans
from paceline.fill.session import FillSession
from paceline.fill.source import Prediction, Span


@dataclass
class Followed:
    """What following a text cost. ``windows``: proposed and accepted ids of each span round; ``problems``: broken
    promises of the session."""

    tokens: int
    forwards: int = 0
    windows: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards

    @property
    def verified(self) -> int:
        return sum(proposed for proposed, _ in self.windows)


def follow(session: FillSession, text: Sequence[int], width: int = 31) -> Followed:
    """Decode ``text`` with the session's spans, in windows of at most ``width`` ids. The first id is the prefill's."""
    found = Followed(len(text))
    session.observe(text[0])
    place = 1
    span, matched = session.propose(len(text) - place), 0
    while place < len(text):
        ids = [] if span is None or not matched else span.ids(matched, min(width, session.reach(span, matched)))
        if span is not None and len(span) > len(text) - place + matched:
            found.problems.append(f"a span of {len(span)} ids where {len(text) - place} remain")
        right = agreeing(ids, text[place:])
        burst = text[place : place + right + 1]
        found.forwards += 1
        if span is not None and ids:
            found.windows.append((len(ids), right))
            session.verified(span, len(ids), right)
        place += len(burst)
        for token in burst:
            if span is not None and token == span[matched]:
                matched += 1
                if matched == len(span):
                    session.commit(span, matched)
                    span, matched = None, 0
                continue
            if span is not None:
                session.commit(span, matched)
                span, matched = None, 0
            session.observe(token)
        if span is None:
            span = session.propose(len(text) - place)
    if span is not None:
        session.commit(span, matched)
    return found


def agreeing(ids: Sequence[int], text: Sequence[int]) -> int:
    """How many leading ids are those of ``text``."""
    return next((n for n, (a, b) in enumerate(zip(ids, text, strict=False)) if a != b), min(len(ids), len(text)))


def predicted(prediction: Sequence[int], prompt: Sequence[int] = (), own: bool = False) -> FillSession:
    return FillSession(prompt, Prediction(prediction), own)


def copying(prompt: Sequence[int]) -> FillSession:
    return FillSession(prompt, None, own=True)


def code_like(chance: random.Random, lines: int) -> list[list[int]]:
    """Lines as a tokenizer cuts code: a few ids come all the time (1 ends a line), others belong to one line."""
    frequent = list(range(2, 12))
    found = []
    for number in range(lines):
        words = [chance.choice(frequent) if chance.random() < 0.5 else 100 + chance.randrange(400) for _ in range(9)]
        found.append([*words[:4], 1000 + number, *words[4:], 1])
    return found


def edited(chance: random.Random, lines: Sequence[Sequence[int]], every: int) -> list[list[int]]:
    """The lines with one edit in ``every`` of them on average: ids or whole lines inserted, deleted or replaced."""
    found: list[list[int]] = []
    for line in lines:
        new = list(line)
        if chance.random() * every >= 1:
            found.append(new)
            continue
        place = chance.randrange(len(new) - 1)
        fresh = [5000 + chance.randrange(1000) for _ in range(chance.randint(1, 3))]
        kind = chance.choice(("insert", "delete", "replace", "insert line", "delete line"))
        if kind == "delete line":
            continue
        if kind == "insert line":
            found.append([5000 + chance.randrange(1000) for _ in range(8)] + [1])
        elif kind == "insert":
            new[place:place] = fresh
        else:
            new[place : place + chance.randint(1, 3)] = fresh if kind == "replace" else []
        found.append(new)
    return found


def flat(lines: Sequence[Sequence[int]]) -> list[int]:
    return [token for line in lines for token in line]


def first_ids(span: Span | None, count: int) -> list[int]:
    return [] if span is None else span.ids(0, count)


def make_row(prediction: Sequence[int] | None, max_tokens: int = 1000, fill: bool = False) -> Row:
    """A row that has been prefilled; its prompt is 1, 2, 3."""
    source = None if prediction is None else Prediction(prediction)
    request = Request("r", (1, 2, 3), SamplingParams(), max_tokens, (), 0, 4, prediction=source, fill=fill)
    return Row(request, index=0, tokens=[1, 2, 3])


def deliver(spans: RowSpans, row: Row, result: RowResult, taken: int, continues: bool = True) -> None:
    """What the engine does of a delivered round as far as spans can see it."""
    row.generated += taken
    spans.delivered(row, result, taken, continues)


def plain(*tokens: int) -> RowResult:
    """A round without proposals, or a first token."""
    return RowResult((), tokens, 0)
