"""The figures of the GPU benchmark: streams on the clock, idle time, bytes of a step. Made by hand, no engine."""

from __future__ import annotations

import pytest

from paceline.bench.gpu.idle import (
    HOST_GAP_US,
    SHOWN_KERNELS,
    Operation,
    idle_figures,
    kernel_shares,
    steady_part,
)
from paceline.bench.gpu.roofline import Bandwidth, chain_step_bytes, step_bytes
from paceline.bench.gpu.streams import StreamClock, steady_figures
from paceline.core.errors import PacelineError
from paceline.core.stats import EngineStats
from paceline.draft.kinds._eagle_layer import Eagle3Shape
from paceline.models.config import decoder_config
from paceline.models.random import SHAPES


def _clock(times: list[float], counts: list[int]) -> StreamClock:
    clock = StreamClock()
    clock.times, clock.counts = times, counts
    return clock


def test_only_the_time_in_which_all_streams_decode_counts() -> None:
    early = _clock([0.0, 1.0, 2.0, 3.0], [1, 3, 3, 3])
    late = _clock([1.0, 2.0, 3.0, 4.0, 5.0], [1, 1, 1, 1, 1])
    figures = steady_figures([early, late], EngineStats(), EngineStats(num_draft_tokens=14))
    assert (figures.seconds, figures.tokens, figures.rounds) == (2.0, 8, 2)  # from 1 (exclusive) to 3
    assert figures.ms_per_token == pytest.approx(500.0)
    assert figures.round_ms == pytest.approx(1000.0)
    assert figures.acceptance_length == pytest.approx(2.0)
    assert figures.depth == pytest.approx(2.0)
    assert figures.tokens_per_second == pytest.approx(4.0)


def test_streams_that_never_decode_together_are_an_error() -> None:
    with pytest.raises(PacelineError, match="ask for more tokens"):
        steady_figures([_clock([0.0, 1.0], [1, 1]), _clock([2.0, 3.0], [1, 1])], EngineStats(), EngineStats())


def _rounds(count: int) -> list[Operation]:
    """Rounds of two kernels of 40 us, 2 us apart; 18 us between rounds."""
    starts = [(100.0 * n + start, name) for n in range(count) for start, name in ((0.0, "product"), (42.0, "attend"))]
    return [Operation(start, start + 40.0, name) for start, name in starts]


def test_waiting_between_rounds_is_told_from_gaps_within_them() -> None:
    figures = idle_figures(_rounds(100))
    assert HOST_GAP_US > 2.0
    assert figures.between == pytest.approx(0.18, abs=0.01)
    assert figures.within == pytest.approx(0.02, abs=0.005)


def test_kernels_that_overlap_are_not_counted_twice() -> None:
    spans = sorted(Operation(float(n), n + length, "k") for n in range(100) for length in (0.5, 1.5))
    assert idle_figures(spans).between == idle_figures(spans).within == 0.0


def test_the_ends_of_a_trace_are_left_out() -> None:
    steady = steady_part(_rounds(100))
    assert steady[0].start >= 3000.0
    assert steady[-1].stop <= 7000.0
    with pytest.raises(PacelineError, match="too short"):
        steady_part(_rounds(1))


def test_kernels_are_listed_by_the_time_they_take() -> None:
    found = kernel_shares(_rounds(100), round_ms=0.1)
    assert [entry["name"] for entry in found] == ["product", "attend"]
    assert found[0]["per_round"] == pytest.approx(1.0, abs=0.02)
    assert found[0]["us_per_round"] == pytest.approx(40.0, rel=0.02)
    assert sum(entry["share"] for entry in found) == pytest.approx(1.0)
    many = [Operation(float(n), n + 1.0, f"k{n % 40}") for n in range(400)]
    assert kernel_shares(many, 0.1)[-1]["name"] == f"{40 - SHOWN_KERNELS} others"


def test_bytes_of_a_step_are_those_of_the_matrices() -> None:
    config = decoder_config(SHAPES["qwen3-8b"], "here")
    bytes_ = step_bytes(config)
    assert bytes_.weights == pytest.approx(15.14e9, rel=0.001)
    assert bytes_.kv_token == 36 * 2 * 8 * 128 * 2
    slow = Bandwidth(reads=1e12, copies=1e12, launch="")
    assert bytes_.floor_ms(slow) == pytest.approx(15.14, rel=0.001)
    assert bytes_.floor_ms(slow, rows=8, context=1000) - bytes_.floor_ms(slow) == pytest.approx(1.18, rel=0.01)


def test_a_drafted_token_reads_one_layer_and_its_head() -> None:
    shape = Eagle3Shape(4096, 4096, 32, 8, 128, 12288, 32_000, (1, 17, 32))
    layer = 8192 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 12288
    assert chain_step_bytes(shape) == 2 * (layer + 32_000 * 4096)
