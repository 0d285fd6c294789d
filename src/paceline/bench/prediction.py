"""``bench prediction``: recorded answers, edited by a script, given back as the predictions of the same requests.

One engine answers every request plainly and with each prediction, in turns; the tokens must be those of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigError, PacelineError, RequestError
from ..core.params import SamplingParams
from ..engine.frontend import Prompt
from ..engine.llm import LLM
from .arms import encode_prompt
from .edits import edited_lines
from .pairs import Bound, interleaved, speedup
from .replay import Replay, replay
from .workloads import REPETITIVE, BenchPrompt, overlap, read_workload

#: Hears of the stage, the steps done and the steps to do.
Progress = Callable[[str, int, int], None]

_WARM_UP_TOKENS = 16
_LEAST_TOKENS = 24


@dataclass(frozen=True)
class PredictionSettings:
    """What to measure. ``prompts``: as for ``bench decode``, answered in their order until the answers have ``lines``
    lines together; ``max_tokens`` of one answer; ``every``: densities of edits, lines per edit."""

    model: str = "demo"
    dtype: str = "bfloat16"
    device: str = "auto"
    spec_method: str = "none"
    threads: int | None = None
    prompts: tuple[str, ...] = ("copy",)
    lines: int = 300
    max_tokens: int = 512
    every: tuple[int, ...] = (20, 10, 5)
    repeats: int = 3

    def check(self) -> None:
        """Raise :class:`ConfigError` naming the setting that cannot be honoured. Loads nothing."""
        for name, least in (("lines", 1), ("max_tokens", _LEAST_TOKENS), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ConfigError(name, f"must be at least {least}, not {getattr(self, name)}")
        if not self.every or min(self.every) < 1:
            raise ConfigError("every", "must name lines per edit, each at least 1")


@dataclass(frozen=True)
class Answer:
    """A recorded plain answer. ``params``: the options it was asked with."""

    name: str
    prompt: Prompt
    params: SamplingParams
    tokens: tuple[int, ...]
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


@dataclass(frozen=True)
class Case:
    """One density of edits: a prediction for every answer, what was edited, and the rounds without a model."""

    every: int
    predictions: list[str]
    edits: Counter[str]
    replays: list[Replay]

    @property
    def name(self) -> str:
        return f"an edit in {self.every} lines"


@dataclass(frozen=True)
class PredictionRun:
    """One answer: seconds from its first token to its end, and the figures of the request."""

    seconds: float
    tokens: int
    forwards: int
    accepted: int
    rejected: int
    same_tokens: bool


#: The runs of one way of answering: answer -> repeat.
Runs = list[list[PredictionRun]]


@dataclass
class PredictionMeasurement:
    """Everything a run of the benchmark saw. ``left_out``: names of answers that went in circles or were too short."""

    settings: PredictionSettings
    engine: dict[str, Any]
    answers: list[Answer]
    left_out: list[str]
    cases: list[Case]
    plain: Runs = field(default_factory=list)
    runs: dict[int, Runs] = field(default_factory=dict)

    def gain(self, every: int) -> Bound:
        """Speed-up of decoding over plain: geometric mean over the answers, bounds by bootstrap."""
        pairs = [
            [(base.seconds, other.seconds) for base, other in zip(*both, strict=True)]
            for both in zip(self.plain, self.runs[every], strict=True)
        ]
        found = speedup(pairs)
        assert found is not None
        return found

    @property
    def same_tokens(self) -> bool:
        """Whether every run gave the recorded tokens."""
        return all(run.same_tokens for runs in (self.plain, *self.runs.values()) for each in runs for run in each)

    @property
    def failure(self) -> PacelineError | None:
        """An error if tokens differ though the engine promises that they do not."""
        if self.engine["exactness"] == "bitwise" and not self.same_tokens:
            return PacelineError("an answer has other tokens than the recorded one")
        return None


def measure_prediction(settings: PredictionSettings, progress: Progress | None = None) -> PredictionMeasurement:
    """Record answers, edit them, then measure. Raises what loading or decoding raises; :class:`RequestError` if no
    answer is left to measure."""
    settings.check()
    prompts = [prompt for spec in settings.prompts for prompt in read_workload(spec)]
    options: dict[str, Any] = {"spec_method": settings.spec_method, "num_threads": settings.threads}
    with LLM(settings.model, dtype=settings.dtype, device=settings.device, **options) as llm:
        return measure_with(llm, settings, prompts, progress)


def measure_with(
    llm: LLM, settings: PredictionSettings, prompts: list[BenchPrompt], progress: Progress | None = None
) -> PredictionMeasurement:
    """The measurement in a running engine."""
    tell = progress or (lambda stage, done, total: None)
    answers, left_out = _record(llm, settings, prompts, tell)
    cases = [_case(llm, every, answers) for every in settings.every]
    names = ("model", "dtype", "device", "num_threads", "exactness", "drafter", "spec_tokens")
    engine = {name: llm.info().get(name) for name in names}
    found = PredictionMeasurement(settings, engine, answers, left_out, cases)
    found.runs = {case.every: [] for case in cases}
    for place, answer in enumerate(answers):
        tell("measuring", place, len(answers))
        _measure(llm, found, place, answer)
    return found


def _measure(llm: LLM, found: PredictionMeasurement, place: int, answer: Answer) -> None:
    """All repeats of one answer: plain and every prediction in turns."""
    rows: dict[int | None, list[PredictionRun]] = {None: [], **{case.every: [] for case in found.cases}}
    for repeat in range(found.settings.repeats):
        for case in interleaved([None, *found.cases], repeat):
            prediction = None if case is None else case.predictions[place]
            rows[None if case is None else case.every].append(_run(llm, answer, prediction))
    found.plain.append(rows[None])
    for case in found.cases:
        found.runs[case.every].append(rows[case.every])


def _record(
    llm: LLM, settings: PredictionSettings, prompts: list[BenchPrompt], tell: Progress
) -> tuple[list[Answer], list[str]]:
    """Plain answers of enough lines, and the names of those that are not measured."""
    answers: list[Answer] = []
    left_out: list[str] = []
    lines = 0
    params = SamplingParams(temperature=0.0, max_tokens=settings.max_tokens, speculative=False)
    llm.generate("Warm up.", SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS, ignore_eos=True))
    for prompt in prompts:
        tell("recording plain answers", min(lines, settings.lines), settings.lines)
        if lines >= settings.lines:
            break
        ready = Prompt(None, encode_prompt(llm.tokenizer, prompt.text))
        output = llm.generate(ready, params)[0]
        if len(output.token_ids) < _LEAST_TOKENS or overlap(ready.ids, output.token_ids).kind == REPETITIVE:
            left_out.append(prompt.name)
            continue
        answers.append(Answer(prompt.name, ready, params, output.token_ids, output.text))
        lines += len(answers[-1].lines)
    if not answers:
        raise RequestError("prompts", f"none has an answer of {_LEAST_TOKENS} tokens that does not go in circles")
    return answers, left_out


def _case(llm: LLM, every: int, answers: list[Answer]) -> Case:
    case = Case(every, [], Counter(), [])
    for place, answer in enumerate(answers):
        changed, edits = edited_lines(answer.lines, every, seed=every * 1000 + place)
        case.predictions.append("\n".join(changed))
        case.edits.update(edits)
        ids = llm.tokenizer.encode(case.predictions[-1], add_special_tokens=False)
        case.replays.append(replay(ids, answer.tokens))
    return case


def _run(llm: LLM, answer: Answer, prediction: str | None) -> PredictionRun:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=answer.params.max_tokens,
        speculative=prediction is not None,
        prediction=prediction,
    )
    output = llm.generate(answer.prompt, params)[0]
    if output.error is not None:
        raise output.error
    metrics = output.metrics
    return PredictionRun(
        seconds=metrics.total_time - (metrics.time_to_first_token or 0.0),
        tokens=metrics.completion_tokens,
        forwards=metrics.speculative_decoding.forwards,
        accepted=metrics.accepted_prediction_tokens,
        rejected=metrics.rejected_prediction_tokens,
        same_tokens=output.token_ids == answer.tokens,
    )
