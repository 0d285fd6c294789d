"""``bench prediction``: a recorded answer, edited by a script, given back as the prediction of the same request.

One engine answers the request plainly and with each prediction, in turns; the tokens must be those of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigError, PacelineError
from ..core.params import SamplingParams
from ..engine.frontend import Prompt
from ..engine.llm import LLM
from ..engine.outputs import RequestOutput
from .edits import edited_lines
from .pairs import Bound, interleaved, speedup
from .replay import Replay, replay

#: Hears of the stage, the steps done and the steps to do.
Progress = Callable[[str, int, int], None]

_PROMPT = "Write a long Python module with many small functions. Only code."


@dataclass(frozen=True)
class PredictionSettings:
    """What to measure. The answer is sampled, since greedy answers of small models soon repeat one line for ever; its
    draws depend on ``seed`` alone, so every run of it is the same. ``lines``: where it is cut; ``max_tokens``: what it
    may take at most. ``every``: densities of edits, lines per edit."""

    model: str = "demo"
    dtype: str = "bfloat16"
    device: str = "auto"
    spec_method: str = "none"
    threads: int | None = None
    prompt: str = _PROMPT
    lines: int = 300
    max_tokens: int = 4096
    temperature: float = 0.9
    min_p: float = 0.05
    seed: int = 4
    every: tuple[int, ...] = (20, 10, 5)
    repeats: int = 3

    def check(self) -> None:
        """Raise :class:`ConfigError` naming the setting that cannot be honoured. Loads nothing."""
        for name, least in (("lines", 2), ("max_tokens", 2), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ConfigError(name, f"must be at least {least}, not {getattr(self, name)}")
        if not self.every or min(self.every) < 1:
            raise ConfigError("every", "must name lines per edit, each at least 1")


@dataclass(frozen=True)
class Case:
    """One density of edits: the prediction, what was edited, and its rounds without a model."""

    every: int
    prediction: str
    edits: Counter[str]
    replay: Replay

    @property
    def name(self) -> str:
        return f"an edit in {self.every} lines"


@dataclass(frozen=True)
class PredictionRun:
    """One answer: seconds from its first token to its end, and the figures of the request."""

    seconds: float
    forwards: int
    tokens_per_forward: float
    accepted: int
    rejected: int
    same_tokens: bool


@dataclass
class PredictionMeasurement:
    """Everything a run of the benchmark saw. ``plain`` and ``runs`` (density -> runs) are in the order of repeats."""

    settings: PredictionSettings
    engine: dict[str, Any]
    tokens: tuple[int, ...]
    lines: int
    cases: list[Case]
    plain: list[PredictionRun] = field(default_factory=list)
    runs: dict[int, list[PredictionRun]] = field(default_factory=dict)

    def gain(self, every: int) -> Bound:
        """Speed-up of decoding over plain, bounds by bootstrap over the repeats' pairs."""
        pairs = [(base.seconds, other.seconds) for base, other in zip(self.plain, self.runs[every], strict=True)]
        found = speedup([pairs])
        assert found is not None
        return found

    @property
    def failure(self) -> PacelineError | None:
        """An error if tokens differ though the engine promises that they do not."""
        runs = [*self.plain, *(run for runs in self.runs.values() for run in runs)]
        if self.engine["exactness"] == "bitwise" and not all(run.same_tokens for run in runs):
            return PacelineError("an answer has other tokens than the recorded one")
        return None


def measure_prediction(settings: PredictionSettings, progress: Progress | None = None) -> PredictionMeasurement:
    """Record the answer, edit it, then measure. Raises what loading or decoding raises."""
    settings.check()
    options: dict[str, Any] = {"spec_method": settings.spec_method, "num_threads": settings.threads}
    with LLM(settings.model, dtype=settings.dtype, device=settings.device, **options) as llm:
        return measure_with(llm, settings, progress)


def measure_with(llm: LLM, settings: PredictionSettings, progress: Progress | None = None) -> PredictionMeasurement:
    """The measurement in a running engine."""
    tell = progress or (lambda stage, done, total: None)
    prompt = _encode(llm, settings.prompt)
    tokens, text = _record(llm, prompt, settings, tell)
    lines = text.split("\n")
    cases = [_case(llm, every, lines, tokens) for every in settings.every]
    names = ("model", "dtype", "device", "num_threads", "exactness", "drafter", "spec_tokens")
    engine = {name: llm.info().get(name) for name in names}
    found = PredictionMeasurement(settings, engine, tokens, len(lines), cases)
    found.runs = {case.every: [] for case in cases}
    done = 0
    for repeat in range(settings.repeats):
        for case in interleaved([None, *cases], repeat):
            tell("measuring", done, settings.repeats * (1 + len(cases)))
            run = _answer(llm, prompt, _params(settings, len(tokens), case), tokens)
            (found.plain if case is None else found.runs[case.every]).append(run)
            done += 1
    return found


def _encode(llm: LLM, text: str) -> Prompt:
    if llm.tokenizer.chat_template:
        return llm.encode_chat([{"role": "user", "content": text}])
    return llm.encode(text)


def _record(llm: LLM, prompt: Prompt, settings: PredictionSettings, tell: Progress) -> tuple[tuple[int, ...], str]:
    """The plain answer up to the end of its last line, or of its tokens if there are fewer lines."""
    tokens: list[int] = []
    text = ""
    for delta in llm.stream(prompt, _params(settings, settings.max_tokens, None)):
        tokens += delta.token_ids
        text += delta.text
        tell("recording the plain answer", min(text.count("\n"), settings.lines), settings.lines)
        if text.count("\n") >= settings.lines or delta.output is not None:
            break
    return tuple(tokens), text


def _params(settings: PredictionSettings, max_tokens: int, case: Case | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=settings.temperature,
        min_p=settings.min_p,
        seed=settings.seed,
        ignore_eos=True,
        speculative=case is not None,
        prediction=None if case is None else case.prediction,
    )


def _case(llm: LLM, every: int, lines: Sequence[str], tokens: Sequence[int]) -> Case:
    changed, edits = edited_lines(lines, every, seed=every)
    prediction = "\n".join(changed)
    ids = llm.tokenizer.encode(prediction, add_special_tokens=False)
    return Case(every, prediction, edits, replay(ids, tokens))


def _answer(llm: LLM, prompt: Prompt, params: SamplingParams, tokens: tuple[int, ...]) -> PredictionRun:
    output: RequestOutput = llm.generate(prompt, params)[0]
    if output.error is not None:
        raise output.error
    metrics = output.metrics
    return PredictionRun(
        seconds=metrics.total_time - (metrics.time_to_first_token or 0.0),
        forwards=metrics.speculative_decoding.forwards,
        tokens_per_forward=metrics.speculative_decoding.tokens_per_forward,
        accepted=metrics.accepted_prediction_tokens,
        rejected=metrics.rejected_prediction_tokens,
        same_tokens=output.token_ids == tokens,
    )
