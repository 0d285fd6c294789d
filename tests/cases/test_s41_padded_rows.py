"""S41: batches that no graph was captured for are filled up with rows that come to no harm and do none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.support.scenarios import DECODER, TOY, greedy

from paceline.core.config import EngineConfig
from paceline.draft.base import DraftProvider
from paceline.draft.kinds.eagle3 import random_eagle3
from paceline.draft.kinds.suffix import SuffixDrafter
from paceline.engine.build import Extras, assemble, target_view
from paceline.engine.graph_backend import CudaGraphs, GraphBackend
from paceline.models.binding import TargetBinding
from paceline.models.random import random_target
from paceline.testing.collect import Collector
from paceline.testing.drafters import DeviceOracleDrafter
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.recorded import RecordedFunctions
from paceline.testing.workload import make_prompt

ROWS = (*range(1, 18), 31, 33)
DEPTHS = (3, 4)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def jobs_of(rows: int, vocab_size: int) -> list[Job]:
    """Each row ends at another time."""
    return [Job(f"row-{n}", make_prompt(n, 5 + n % 7, vocab_size), greedy(8 + 2 * n)) for n in range(rows)]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("drafter", ["device", "suffix"])
def test_s41_recorded_rounds_of_every_batch_equal_solo_decoding(drafter: str, depth: int) -> None:
    make: Callable[[], DraftProvider] = (
        SuffixDrafter if drafter == "suffix" else lambda: DeviceOracleDrafter(DECODER.recorded)
    )
    for rows in ROWS:
        backend = RecordedFunctions()
        setup = Setup(rows=rows, depth=depth, device_round=True, graphs=backend)
        jobs = jobs_of(rows, DECODER.vocab_size)
        with open_engine(TOY, DECODER.eos_ids, setup, make()) as engine:
            assert compare(jobs, DECODER, run_jobs(engine, jobs)) + leftovers(engine) == [], rows
            assert backend.replays >= engine.stats().device_rounds > 0


# -- on a GPU: the same against an engine without graphs and against rows that are alone -----------------------------


class NoGraphs(CudaGraphs):
    """Captures nothing: every round runs operation by operation."""

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        raise RuntimeError("graphs are off")


@functools.cache
def gpu_target() -> TargetBinding:
    return random_target("tiny", "bfloat16", "cuda", 256)


def gpu_streams(batches: Sequence[Sequence[Job]], depth: int, backend: GraphBackend) -> list[dict[str, Collector]]:
    """What engines over the GPU target give for each batch."""
    target = gpu_target()
    config = EngineConfig.build(
        device="cuda",
        dtype="bfloat16",
        max_num_seqs=max(map(len, batches)),
        kv_cache_tokens=64 * 256,
        spec_tokens=depth,
        spec_adaptive=False,
    )
    drafter = random_eagle3(target_view(target, (), None), listed=256)
    engine = assemble(config, target, (), drafter=drafter, extras=Extras(graphs=backend))
    try:
        return [run_jobs(engine, jobs) for jobs in batches]
    finally:
        engine.close()


def tokens_of(streams: dict[str, Collector]) -> dict[str, list[int]]:
    return {name: collector.tokens for name, collector in streams.items()}


@functools.cache
def alone() -> dict[str, list[int]]:
    """Tokens of every row decoded alone, without graphs."""
    most = jobs_of(max(ROWS), gpu_target().vocab_size)
    found: dict[str, list[int]] = {}
    for stream in gpu_streams([[job] for job in most], DEPTHS[0], NoGraphs(torch.device("cuda"))):
        found |= tokens_of(stream)
    return found


@needs_cuda
@pytest.mark.parametrize("depth", DEPTHS)
def test_s41_graphs_on_a_gpu_equal_graphs_off_and_rows_alone(depth: int) -> None:
    most = jobs_of(max(ROWS), gpu_target().vocab_size)
    batches = [most[:rows] for rows in ROWS]
    off = gpu_streams(batches, depth, NoGraphs(torch.device("cuda")))
    on = gpu_streams(batches, depth, CudaGraphs(torch.device("cuda")))
    for jobs, without, with_graphs in zip(batches, off, on, strict=True):
        expected = {job.name: alone()[job.name] for job in jobs}
        assert tokens_of(with_graphs) == tokens_of(without) == expected, len(jobs)
