"""The main promise on a GPU with a real model: speculative decoding gives plain decoding's tokens, bit for bit.

``python -m paceline.bench.gpu.equality --model DIR --prompts FILE`` decodes the same prompts plainly and with every
drafter, greedy and sampled, one after the other and together; then it compares raw logits over batches and widths, and
lets thousands of short requests come and go. It ends with one JSON line. A part that fails costs its own figures only.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...core.config import EngineConfig
from ...core.request import SamplingParams
from ...core.stats import EngineStats
from ...draft.base import DraftProvider
from ...draft.kinds.eagle3 import random_eagle3
from ...draft.kinds.ngram import NgramDrafter
from ...draft.kinds.suffix import SuffixDrafter
from ...engine.build import Extras, assemble, target_view
from ...engine.engine import Engine
from ...engine.memory import resident_bytes
from ...models.artifact import ModelArtifact, open_artifact
from ...models.binding import TargetBinding, load_target
from ..arms import encode_prompt
from ..workloads import read_workload, take_evenly
from .forward import ForwardStand
from .streams import StreamClock, measure_streams, run_streams
from .timing import forget_peak, peak_bytes

Ids = Sequence[int]
LOGIT_GRID = ((1, 2, 3, 4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 8, 16))
"""Batches and window widths whose raw logits are compared."""


@dataclass(frozen=True)
class EqualitySettings:
    """``rows``: requests decoded together; ``depth``: most proposals; ``rounds``: length of the soak."""

    model: str
    prompts: str
    device: str = "cuda"
    dtype: str = "bfloat16"
    limit: int = 100
    tokens: int = 128
    rows: int = 16
    depth: int = 4
    rounds: int = 10_000
    max_model_len: int = 2048


@dataclass(frozen=True)
class ArmResult:
    """One drafter under one way of sampling. ``same``: prompts with plain decoding's tokens; ``first_difference``: name
    and place of the first token that differs."""

    drafter: str
    sampling: str
    rows: int
    prompts: int
    same: int
    tokens: int
    seconds: float
    acceptance_length: float
    first_difference: str | None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Arm:
    """One way to propose: the drafter that ``make`` gives, or none. ``predicts``: every request brings plain decoding's
    text with some ids spoilt as its prediction."""

    name: str
    make: Callable[[], DraftProvider] | None = None
    predicts: bool = False


class Subject:
    """The loaded model and its prompts; engines over it, one at a time."""

    def __init__(self, settings: EqualitySettings) -> None:
        self.settings = settings
        self.base = resident_bytes(settings.device)
        self.artifact = open_artifact(settings.model)
        self.target = load_target(self.artifact, settings.dtype, settings.device, settings.max_model_len)
        room = settings.max_model_len - settings.tokens - 1
        self.prompts = list(read_prompts(settings, self.artifact, room))

    @contextmanager
    def engine(self, arm: Arm) -> Iterator[Engine]:
        settings = self.settings
        drafter = None if arm.make is None else arm.make()
        config = EngineConfig.build(
            device=settings.device,
            dtype=settings.dtype,
            max_num_seqs=settings.rows,
            kv_cache_tokens=settings.rows * settings.max_model_len,
            spec_method="none" if drafter is None else "auto",
            spec_tokens=0 if drafter is None else settings.depth,
            spec_adaptive=False,
        )
        forget_peak(settings.device)
        engine = assemble(config, self.target, self.artifact.eos_ids(), drafter=drafter, extras=Extras(base=self.base))
        try:
            yield engine
        finally:
            engine.close()
            gc.collect()

    def arms(self) -> list[Arm]:
        """Plain decoding, which the others are compared with, and every way to propose."""
        return [
            Arm("none"),
            Arm(NgramDrafter.id, make=NgramDrafter),
            Arm(SuffixDrafter.id, make=SuffixDrafter),
            Arm("random chain on the device", make=self.chain),
            Arm("prediction", predicts=True),
        ]

    def chain(self) -> DraftProvider:
        """A chain drafter with random weights."""
        return random_eagle3(target_view(self.target, self.artifact.eos_ids(), None), listed=4096)


def read_prompts(settings: EqualitySettings, artifact: ModelArtifact, room: int) -> Iterator[tuple[str, list[int]]]:
    """Name and ids of each prompt that fits: a workload file, or lines of ``{"name": ..., "ids": [...]}``."""
    first = Path(settings.prompts).read_text("utf-8").split("\n", 1)[0]
    if "ids" in json.loads(first):
        entries = [json.loads(line) for line in Path(settings.prompts).read_text("utf-8").splitlines() if line]
        yield from ((entry["name"], entry["ids"][:room]) for entry in entries[: settings.limit])
        return
    from ...models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(artifact)
    for prompt in take_evenly(read_workload(settings.prompts), settings.limit):
        yield prompt.name, list(encode_prompt(tokenizer, prompt.text))[:room]


def sampling(kind: str, place: int, tokens: int) -> SamplingParams:
    """Greedy, or with temperature and filters and a seed of the prompt's own."""
    if kind == "greedy":
        return SamplingParams(max_tokens=tokens, temperature=0.0)
    return SamplingParams(max_tokens=tokens, temperature=0.8, top_k=50, top_p=0.95, seed=1000 + place)


def spoilt(text: Sequence[int]) -> tuple[int, ...]:
    """``text`` with every 29th id replaced by its neighbour."""
    return tuple(token if (place + 1) % 29 else max(0, token - 1) for place, token in enumerate(text))


def decode(
    engine: Engine, subject: Subject, kind: str, predictions: Sequence[Ids] | None = None
) -> tuple[list[list[int]], float]:
    """Tokens of every prompt and the seconds that all of them took together."""
    tokens = subject.settings.tokens
    clocks = [StreamClock() for _ in subject.prompts]
    begin = time.perf_counter()
    for place, ((_, ids), clock) in enumerate(zip(subject.prompts, clocks, strict=True)):
        params = sampling(kind, place, tokens)
        if predictions is not None and predictions[place]:
            params = replace(params, prediction=spoilt(predictions[place]))
        engine.add_request(ids, params, clock)
    for clock in clocks:
        clock.wait()
    return [clock.tokens for clock in clocks], time.perf_counter() - begin


def streams(subject: Subject) -> dict[str, Any]:
    """Plain decoding, then every drafter: tokens compared, seconds, tokens per round."""
    found: list[ArmResult] = []
    references: dict[str, list[list[int]]] = {}
    memory: dict[str, Any] = {}
    for arm in subject.arms():
        with subject.engine(arm) as engine:
            run_streams(engine, [subject.prompts[0][1]], sampling("greedy", 0, 16))
            for kind in ("greedy", "sampled"):
                before = engine.stats()
                outputs, seconds = decode(engine, subject, kind, references.get(kind) if arm.predicts else None)
                after = engine.stats()
                reference = references.setdefault(kind, outputs)
                key = (arm.name, kind, subject.settings.rows)
                cost = (seconds, _tokens_a_round(before, after))
                found.append(_compared(subject, key, outputs, reference, cost))
            memory[arm.name] = peak_memory(engine, subject.settings.device)
    alone = _alone(subject, references["greedy"])
    arms_document = [asdict(arm) | {"tokens_per_second": arm.tokens_per_second} for arm in [*found, alone]]
    return {"arms": arms_document, "memory": memory}


def _tokens_a_round(before: EngineStats, after: EngineStats) -> float:
    """Tokens per row and round in which the row proposed something: its drafter, or a span."""
    rounds = after.num_drafts + after.span_rounds - before.num_drafts - before.span_rounds
    accepted = after.num_accepted_tokens + after.accepted_span_tokens
    accepted -= before.num_accepted_tokens + before.accepted_span_tokens
    return 1 + accepted / rounds if rounds else 1.0


def _alone(subject: Subject, reference: list[list[int]]) -> ArmResult:
    """The first prompts plainly, one after the other: no batch-mates."""
    with subject.engine(Arm("none")) as engine:
        begin = time.perf_counter()
        outputs = []
        for place, (_, ids) in enumerate(subject.prompts[:20]):
            outputs.append(run_streams(engine, [ids], sampling("greedy", place, subject.settings.tokens))[0].tokens)
        seconds = time.perf_counter() - begin
    return _compared(subject, ("none", "greedy", 1), outputs, reference[: len(outputs)], (seconds, 1.0))


def _compared(
    subject: Subject,
    arm: tuple[str, str, int],
    outputs: list[list[int]],
    reference: list[list[int]],
    cost: tuple[float, float],
) -> ArmResult:
    drafter, kind, rows = arm
    different = [place for place, (own, plain) in enumerate(zip(outputs, reference, strict=True)) if own != plain]
    first = None
    if different:
        own, plain = outputs[different[0]], reference[different[0]]
        at = next((n for n, (a, b) in enumerate(zip(own, plain, strict=False)) if a != b), min(len(own), len(plain)))
        first = f"{subject.prompts[different[0]][0]}: token {at}"
    total = sum(map(len, outputs))
    return ArmResult(drafter, kind, rows, len(outputs), len(outputs) - len(different), total, cost[0], cost[1], first)


def peak_memory(engine: Engine, device: str) -> dict[str, float]:
    """Bytes in use on the device at most, against what the engine planned."""
    planned, held = float(engine.info()["memory"]["total"]), float(peak_bytes(device)[0])
    return {"planned": planned, "held": held, "held_over_planned": held / planned}


def logits(subject: Subject) -> dict[str, Any]:
    """Raw logits of a row over batches and widths: are they the same bits everywhere?"""
    batches, widths = LOGIT_GRID
    context = min(512, subject.target.max_model_len - max(widths))
    stand = ForwardStand(subject.target, max(batches), context, max(widths))
    reference = stand.logits(1, max(widths))
    bad = []
    for rows in batches:
        for width in widths:
            own = stand.logits(rows, width)[:width]
            if not torch.equal(own, reference[:width]):
                worst = float((own - reference[:width]).abs().max())
                bad.append({"rows": rows, "width": width, "largest_difference": worst})
    return {"cells": len(batches) * len(widths), "different": bad}


def soak(subject: Subject) -> dict[str, Any]:
    """Thousands of rounds in which requests of random lengths come and go: does the process or the device grow?"""
    generator = random.Random(7)
    settings = subject.settings
    samples = []
    longest = settings.max_model_len // 2 - 1
    with subject.engine(Arm("random chain on the device", make=subject.chain)) as engine:
        rounds = 0
        while rounds < settings.rounds:
            jobs = [_short_prompt(generator, min(40, longest)) for _ in range(4 * settings.rows)]
            _serve_mixed(engine, jobs, [generator.randint(8, min(64, longest)) for _ in jobs])
            rounds = engine.stats().rounds
            samples.append((rounds, resident_bytes(), _allocated(settings.device)))
        info = engine.info()
    middle = samples[len(samples) // 2]
    return {
        "rounds": samples[-1][0],
        "host_growth": samples[-1][1] - middle[1],
        "device_growth": samples[-1][2] - middle[2],
        "running": info["num_requests_running"],
    }


def _serve_mixed(engine: Engine, jobs: Sequence[Ids], lengths: Sequence[int]) -> None:
    clocks = [StreamClock() for _ in jobs]
    for prompt, length, clock in zip(jobs, lengths, clocks, strict=True):
        engine.add_request(prompt, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True), clock)
    for clock in clocks:
        clock.wait()


def _short_prompt(generator: random.Random, longest: int) -> list[int]:
    return [generator.randrange(5, 250) for _ in range(generator.randint(4, longest))]


def _allocated(device: str) -> int:
    return torch.cuda.memory_reserved(device) if device.startswith("cuda") else 0


def speed(subject: Subject) -> dict[str, Any]:
    """Tokens per second of one plain stream of the real model."""
    with subject.engine(Arm("none")) as engine:
        params = SamplingParams(max_tokens=256, temperature=0.0, ignore_eos=True)
        run_streams(engine, [subject.prompts[0][1]], params)
        return measure_streams(engine, [subject.prompts[0][1]], params).document()


_PARTS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "streams": streams,
    "logits": logits,
    "soak": soak,
    "speed": speed,
}


def check_equality(settings: EqualitySettings, parts: Sequence[str] = tuple(_PARTS)) -> dict[str, Any]:
    """Run the parts; a failed one is reported in its place."""
    subject = Subject(settings)
    target: TargetBinding = subject.target
    document: dict[str, Any] = {
        "bench": "gpu-equality",
        "settings": asdict(settings),
        "model": {"identity": subject.artifact.identity, "exactness": target.exactness},
        "prompt_tokens": sum(len(ids) for _, ids in subject.prompts),
    }
    for name in parts:
        begin = time.perf_counter()
        try:
            document[name] = _PARTS[name](subject)
        except Exception as error:
            document[name] = {"failure": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(limit=-6)}
        document[name]["seconds"] = time.perf_counter() - begin
        print(f"{name}: {document[name]}", file=sys.stderr, flush=True)
    return document


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True)
    for name in ("limit", "tokens", "rows", "depth", "rounds"):
        parser.add_argument(f"--{name}", type=int, default=getattr(EqualitySettings, name))
    for name in ("device", "dtype"):
        parser.add_argument(f"--{name}", default=getattr(EqualitySettings, name))
    parser.add_argument("--parts", default=",".join(_PARTS))
    options = vars(parser.parse_args(arguments))
    parts = [name.strip() for name in options.pop("parts").split(",")]
    print(json.dumps(check_equality(EqualitySettings(**options), parts)))


if __name__ == "__main__":
    main()
