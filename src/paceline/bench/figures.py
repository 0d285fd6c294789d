"""From runs to figures: rates, speed-ups with bounds, acceptance, equality; per arm and class, and per prompt.

Pure arithmetic over :class:`paceline.bench.decode.Measurement`; prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .arms import Run
from .decode import Measurement
from .pairs import Bound, prompt_speedup, speedup
from .workloads import CLASSES

#: What the figures mean; goes into the report and the JSON document.
DEFINITIONS = {
    "tokens": "counted by ids, an ending EOS included; every arm of one number format generates the same number",
    "decode_tokens_per_second": "tokens behind the first burst / time behind it; totals over prompts, median runs",
    "tokens_per_second": "all tokens / wall time of the call, prefill included",
    "time_to_first_token_ms": "median over prompts: from the call to the first burst",
    "speedup": (
        "geometric mean over prompts of the median ratio of interleaved pairs, decode time per token; 95 percent "
        "two-level bootstrap bounds; for arms of ours over prompts with the tokens of plain decoding only"
    ),
    "mean_acceptance_length": "1 + accepted / draft rounds, rounds without proposals not counted",
    "tokens_per_forward": "tokens behind the prefill / target forwards behind it",
    "copied": "of the different 4-grams of the plain output, the share that stands in the prompt",
    "distinct": "different 4-grams / all 4-grams of the plain output",
    "reused": "share of the plain output's 4-grams seen before in prompt or output",
    "copy-heavy": "copied >= 0.5 and distinct >= 0.5",
    "repetitive": "distinct < 0.5: the model goes in circles",
    "free": "everything else",
}


@dataclass(frozen=True)
class Acceptance:
    """Totals over one run per prompt (greedy runs repeat themselves)."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    tokens_per_forward: float
    draft_rounds: int
    drafted: int
    accepted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @property
    def by_position(self) -> list[float]:
        """Accepted at position i / drafted at position i."""
        return [a / d for a, d in zip(self.accepted_by_position, self.drafted_by_position, strict=True) if d]


@dataclass(frozen=True)
class ArmFigures:
    """One arm on the prompts of one class. ``same_tokens``: prompts whose every run gave the tokens of plain decoding.

    ``steady``: all repeats of every prompt took the same number of forwards, so nothing was kept between prompts.
    ``against``: name of the base -> speed-up of decoding over it.
    """

    arm: str
    kind: str
    prompts: int
    same_tokens: int
    steady: bool
    decode_tokens_per_second: float
    tokens_per_second: float
    time_to_first_token_ms: float
    acceptance: Acceptance | None
    against: dict[str, Bound]
    end_to_end: Bound | None

    def document(self) -> dict[str, Any]:
        """Plain JSON."""
        found = asdict(self)
        if self.acceptance is not None:
            found["acceptance"]["by_position"] = self.acceptance.by_position
        return found


class Figures:
    """All figures of a measurement."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement
        self.arms = {str(arm["name"]): arm for arm in measurement.arms}
        self._plain = {str(a["dtype"]): str(a["name"]) for a in measurement.arms if a["own"] and _is_plain(a)}

    def places(self, kind: str) -> list[int]:
        """Measured prompts of a class, in order."""
        subjects = self.measurement.subjects
        return [place for place, s in enumerate(subjects) if s.measured and s.overlap.kind == kind]

    def runs(self, arm: str, place: int) -> list[Run]:
        return self.measurement.runs[arm, place]

    def same_tokens(self, arm: str, place: int) -> bool:
        """Whether every run of an arm gave the plain tokens of its format. A peer's EOS is not compared."""
        wanted = self.measurement.subjects[place].references[str(self.arms[arm]["dtype"])]
        runs = self.runs(arm, place)
        if self.arms[arm]["own"]:
            return all(run.token_ids == wanted.token_ids and run.count == wanted.count for run in runs)
        return all(run.token_ids[: len(wanted.token_ids)] == wanted.token_ids for run in runs)

    def decode_rate(self, arm: str, place: int) -> float:
        """Tokens per second behind the first burst, median over the repeats."""
        return 1.0 / statistics.median(run.decode_seconds_per_token for run in self.runs(arm, place))

    def prompt_speedup(self, arm: str, base: str, place: int) -> float:
        return prompt_speedup(self._pairs(arm, base, place))

    def plain_of(self, arm: str) -> str:
        """The plain arm of the same number format."""
        return self._plain[str(self.arms[arm]["dtype"])]

    def all_equal(self) -> bool:
        """Whether every arm of ours gave the plain tokens on every prompt, alone and in batches."""
        own = [name for name, arm in self.arms.items() if arm["own"]]
        alone = all(self.same_tokens(name, place) for name, place in self.measurement.runs if name in own)
        return alone and all(batch.equal for batch in self.measurement.batches)

    def by_class(self, kind: str) -> list[ArmFigures]:
        """Figures of every arm over the measured prompts of a class; empty if there is none."""
        places = self.places(kind)
        if not places:
            return []
        rates = {name: self._decode_rate(name, places) for name in self.arms}
        bases = _best_peers(self.arms, rates)
        return [self._arm(name, kind, places, bases) for name in self.arms]

    def _arm(self, name: str, kind: str, places: list[int], peers: list[str]) -> ArmFigures:
        same = [place for place in places if self.same_tokens(name, place)]
        counted = same if self.arms[name]["own"] else places
        plain = self.plain_of(name)
        bases = [base for base in (plain, *peers) if base != name]
        bounds = {base: self._speedup(name, base, counted) for base in bases}
        pairs = [self._pairs(name, plain, place, whole=True) for place in counted]
        firsts = [statistics.median(run.first_seconds for run in self.runs(name, place)) for place in places]
        counts = [[None if run.spec is None else run.spec.forwards for run in self.runs(name, p)] for p in places]
        return ArmFigures(
            arm=name,
            kind=kind,
            prompts=len(places),
            same_tokens=len(same),
            steady=all(len(set(entry)) == 1 for entry in counts),
            decode_tokens_per_second=self._decode_rate(name, places),
            tokens_per_second=self._rate(name, places),
            time_to_first_token_ms=1e3 * statistics.median(firsts),
            acceptance=self._acceptance(name, places),
            against={base: bound for base, bound in bounds.items() if bound is not None},
            end_to_end=None if name == plain else speedup(pairs, seed=self.measurement.settings.seed),
        )

    def _pairs(self, arm: str, base: str, place: int, *, whole: bool = False) -> list[tuple[float, float]]:
        """Seconds per token of (base, arm) by repeat; ``whole``: of the whole call instead of decoding alone."""
        both = zip(self.runs(base, place), self.runs(arm, place), strict=True)
        if whole:
            return [(a.seconds_per_token, b.seconds_per_token) for a, b in both]
        return [(a.decode_seconds_per_token, b.decode_seconds_per_token) for a, b in both]

    def _speedup(self, arm: str, base: str, places: Sequence[int]) -> Bound | None:
        pairs = [self._pairs(arm, base, place) for place in places]
        return speedup(pairs, seed=self.measurement.settings.seed)

    def _decode_rate(self, arm: str, places: Sequence[int]) -> float:
        tokens = [self.runs(arm, place)[0].count - self.runs(arm, place)[0].first_count for place in places]
        seconds = [
            statistics.median(run.seconds - run.first_seconds for run in self.runs(arm, place)) for place in places
        ]
        return sum(tokens) / sum(seconds)

    def _rate(self, arm: str, places: Sequence[int]) -> float:
        seconds = [statistics.median(run.seconds for run in self.runs(arm, place)) for place in places]
        return sum(self.runs(arm, place)[0].count for place in places) / sum(seconds)

    def _acceptance(self, arm: str, places: Sequence[int]) -> Acceptance | None:
        first = [self.runs(arm, place)[0] for place in places]
        specs = [run.spec for run in first if run.spec is not None]
        forwards = sum(spec.forwards for spec in specs)
        if not specs or not forwards:
            return None
        rounds = sum(spec.num_spec_steps for spec in specs)
        drafted = sum(spec.num_draft_tokens for spec in specs)
        accepted = sum(spec.num_accepted_draft_tokens for spec in specs)
        return Acceptance(
            mean_acceptance_length=1.0 + accepted / rounds if rounds else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            tokens_per_forward=sum(run.count - run.first_count for run in first) / forwards,
            draft_rounds=rounds,
            drafted=drafted,
            accepted=accepted,
            drafted_by_position=_sums([spec.drafted_by_position for spec in specs]),
            accepted_by_position=_sums([spec.accepted_by_position for spec in specs]),
        )


def batch_figures(measurement: Measurement) -> list[dict[str, Any]]:
    """Per arm: tokens per second one by one and together, and the speed-up with bounds over groups and repeats."""
    found = []
    for arm in dict.fromkeys(batch.arm for batch in measurement.batches):
        runs = [batch for batch in measurement.batches if batch.arm == arm]
        groups = sorted({run.group for run in runs})
        pairs = [[(r.alone_seconds, r.together_seconds) for r in runs if r.group == group] for group in groups]
        bound = speedup(pairs, seed=measurement.settings.seed)
        tokens = sum(run.tokens for run in runs)
        found.append(
            {
                "arm": arm,
                "batch": measurement.settings.batch,
                "groups": len(groups),
                "alone_tokens_per_second": tokens / sum(run.alone_seconds for run in runs),
                "together_tokens_per_second": tokens / sum(run.together_seconds for run in runs),
                "speedup": None if bound is None else asdict(bound),
                "same_tokens": all(run.equal for run in runs),
            }
        )
    return found


def classes_of(figures: Figures) -> dict[str, list[ArmFigures]]:
    """Class -> figures of its arms, for every class that has measured prompts."""
    return {kind: found for kind in CLASSES if (found := figures.by_class(kind))}


def _best_peers(arms: dict[str, dict[str, Any]], rates: dict[str, float]) -> list[str]:
    """The fastest peer without lookup and the fastest with it, over all number formats; fewer if there are none."""
    best = []
    for with_lookup in (False, True):
        names = [
            name
            for name, arm in arms.items()
            if not arm["own"] and (arm["prompt_lookup_num_tokens"] is not None) == with_lookup
        ]
        if names:
            best.append(max(names, key=lambda name: rates[name]))
    return best


def _is_plain(arm: dict[str, Any]) -> bool:
    return str(arm["name"]).startswith("plain ")


def _sums(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    width = max((len(row) for row in counts), default=0)
    return tuple(sum(row[place] for row in counts if place < len(row)) for place in range(width))
