"""Acceptance traces: at every place of a recorded text, how many tokens a drafter proposed and how many were right.

A trace holds counts only: no text, no tokens. Knows no costs and no policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import RequestError

SHIPPED = Path(__file__).parent / "traces"
#: One character per place and count.
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Trace:
    """One request. Entry t of ``proposed``, ``accepted`` and ``match`` tells of the proposals after t + 1 tokens of the
    output: their number, how many first ones were right, and the match they rest on (0 = not known).

    ``depth``: most proposals asked for. ``free``: they came without a model forward. ``synthetic``: drawn by a rule,
    not recorded from a drafter. The output has ``tokens`` tokens, one more than there are entries.
    """

    workload: str
    drafter: str
    temperature: float
    prompt_tokens: int
    depth: int
    free: bool
    synthetic: bool
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    match: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.proposed) + 1

    def to_json(self) -> dict[str, Any]:
        counts = {name: "".join(_DIGITS[n] for n in getattr(self, name)) for name in ("proposed", "accepted", "match")}
        if not any(self.match):
            del counts["match"]
        names = ("workload", "drafter", "temperature", "prompt_tokens", "depth", "free", "synthetic")
        return {name: getattr(self, name) for name in names} | counts

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trace:
        proposed, accepted, match = (_counts(data.get(name, "")) for name in ("proposed", "accepted", "match"))
        return cls(
            workload=str(data["workload"]),
            drafter=str(data["drafter"]),
            temperature=float(data["temperature"]),
            prompt_tokens=int(data["prompt_tokens"]),
            depth=int(data["depth"]),
            free=bool(data["free"]),
            synthetic=bool(data["synthetic"]),
            proposed=proposed,
            accepted=accepted,
            match=match or (0,) * len(proposed),
        )

    def __post_init__(self) -> None:
        if not len(self.proposed) == len(self.accepted) == len(self.match):
            raise ValueError("proposed, accepted and match differ in length")
        if any(not a <= n <= self.depth for n, a in zip(self.proposed, self.accepted, strict=True)):
            raise ValueError(f"a place has more right proposals than proposals, or more than {self.depth}")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_DIGITS.index(digit) for digit in text)


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(trace.to_json(), separators=(",", ":")) for trace in traces]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_traces(path: Path) -> list[Trace]:
    """Traces of one file; :class:`RequestError` names the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("traces", f"{path} cannot be read: {error}") from error
    traces = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                traces.append(Trace.from_json(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise RequestError("traces", f"{path}, line {number} is no trace: {error!r}") from error
    if not traces:
        raise RequestError("traces", f"{path} holds no trace")
    return traces


def shipped_traces() -> list[Trace]:
    """The traces that ship with paceline, drafter after drafter."""
    return [trace for path in sorted(SHIPPED.glob("*.jsonl")) for trace in read_traces(path)]


def interleave(traces: Sequence[Trace]) -> list[Trace]:
    """The traces in an order in which neighbours come from different workloads, the same each time."""
    by_workload: dict[str, list[Trace]] = {}
    for trace in traces:
        by_workload.setdefault(trace.workload, []).append(trace)
    queues = [list(queue) for queue in by_workload.values()]
    mixed = []
    while any(queues):
        mixed += [queue.pop(0) for queue in queues if queue]
    return mixed
