"""Paged attention equals the textbook form for any row mix, and each query's bits do not depend on its company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.batch import ForwardBatch
from paceline.kernels import attention
from paceline.kernels.attention import attend, plan_attention

BLOCK = 16


@dataclass
class World:
    """Rows with filled KV of one layer; ``run`` gives the attention of some queries, as flat rows."""

    lengths: list[int]
    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    scattered: bool
    window: int | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(len(self.lengths) * 1000 + self.lengths[0])
        width = -(-max(self.lengths) // BLOCK)
        count = len(self.lengths) * width
        order = torch.randperm(count, generator=generator) if self.scattered else torch.arange(count)
        self.table = 1 + order.view(len(self.lengths), width)
        shape = ((1 + count) * BLOCK, self.kv_heads, self.dim)
        self.keys = torch.randn(shape, generator=generator).to(self.dtype)
        self.values = torch.randn(shape, generator=generator).to(self.dtype)
        self.queries = [torch.randn(n, self.heads, self.dim, generator=generator).to(self.dtype) for n in self.lengths]

    def run(self, parts: list[tuple[int, int, int]], softcap: float | None = None) -> list[torch.Tensor]:
        """``parts``: (row, first position, count) each; one forward."""
        needed = max(-(-(at + count) // BLOCK) for _, at, count in parts)
        table = torch.zeros(len(parts), needed, dtype=torch.long)
        for place, (row, at, count) in enumerate(parts):
            used = -(-(at + count) // BLOCK)
            table[place, :used] = self.table[row, :used]
            if self.window is not None:
                table[place, : max(0, at - self.window + 1) // BLOCK] = 0
        empty = torch.zeros(0, dtype=torch.long)
        counts = [count for _, _, count in parts]
        batch = ForwardBatch(empty, empty, empty, counts, [at for _, at, _ in parts], {}, {"g": table})
        q = torch.cat([self.queries[row][at : at + count] for row, at, count in parts])
        plan = plan_attention(batch, "g", BLOCK, self.window)
        with torch.inference_mode():
            return list(attend(plan, q, self.keys, self.values, self.dim**-0.5, softcap).split(counts))

    def textbook(self, row: int, at: int, count: int, softcap: float | None = None) -> torch.Tensor:
        """Straight from the definition, query by query, in float64."""
        positions = torch.arange(at + count)
        slots = self.table[row][positions // BLOCK] * BLOCK + positions % BLOCK
        keys, values = self.keys[slots].double(), self.values[slots].double()
        out = []
        for position in range(at, at + count):
            first = 0 if self.window is None else max(0, position - self.window + 1)
            heads = []
            for head in range(self.heads):
                group = head // (self.heads // self.kv_heads)
                query = self.queries[row][position, head].double()
                scores = keys[first : position + 1, group] @ query * self.dim**-0.5
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                heads.append(torch.softmax(scores, 0) @ values[first : position + 1, group])
            out.append(torch.cat(heads))
        return torch.stack(out)


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("window", [None, 24, 300])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_values(dtype: torch.dtype, scattered: bool, window: int | None, softcap: float | None) -> None:
    world = World([560, 40, 270], 6, 2, 16, dtype, scattered, window)
    parts = [(0, 510, 9), (1, 0, 40), (2, 255, 1), (0, 0, 150), (2, 250, 12)]
    for part, got in zip(parts, world.run(parts, softcap), strict=True):
        expected = world.textbook(*part, softcap)
        torch.testing.assert_close(got.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


SHAPES = [(9, 3, 64), (4, 4, 32), (14, 2, 64), (8, 1, 128)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 100])
def test_each_query_has_the_bits_it_has_alone(
    dtype: torch.dtype, shape: tuple[int, int, int], window: int | None
) -> None:
    heads, kv_heads, dim = shape
    if not attention.row_invariant(heads, kv_heads, dim, dtype, None):
        pytest.skip("the fused attention kernel of this CPU is not row-invariant; the binding declares ties")
    world = World([600, 330, 40], heads, kv_heads, dim, dtype, False, window)
    alone = World([600, 330, 40], heads, kv_heads, dim, dtype, False, window)
    for row, at, count in ((0, 250, 20), (0, 500, 33), (1, 0, 140), (2, 7, 5), (1, 300, 30)):
        together = world.run([(2, 3, 4), (row, at, count), (0, 511, 3)])[1]
        single = torch.cat([alone.run([(row, at + i, 1)])[0] for i in range(count)])
        assert torch.equal(together, single)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [0, 1 << 30])
@pytest.mark.parametrize("count", [1, 5])
def test_rows_copied_together_have_the_bits_of_views(
    dtype: torch.dtype, limit: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not attention.row_invariant(9, 3, 64, dtype, None):
        pytest.skip("the fused attention kernel of this CPU is not row-invariant")
    world = World([600, 330, 590, 40], 9, 3, 64, dtype, False)
    parts = [(0, 520, count), (2, 575, count), (1, 280, count), (3, 20, count), (1, 250, count)]
    monkeypatch.setattr(attention, "GATHERED_BYTES", limit)
    together = world.run(parts)
    monkeypatch.setattr(attention, "GATHERED_BYTES", 0)
    for part, got in zip(parts, together, strict=True):
        assert torch.equal(got, world.run([part])[0])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 560), st.integers(1, 32)), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_mix_gives_the_bits_of_each_part_alone(parts: list[tuple[int, int, int]], scattered: bool) -> None:
    if not attention.row_invariant(9, 3, 64, torch.bfloat16, None):
        return
    world = World([600, 600, 600], 9, 3, 64, torch.bfloat16, scattered)
    for part, got in zip(parts, world.run(parts), strict=True):
        assert torch.equal(got, world.run([part])[0])


def test_teeth_spans_that_follow_the_window_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that depends on the context length, not on absolute positions, gives other bits across a window."""
    world = World([600], 9, 3, 64, torch.bfloat16, False)
    if not attention.row_invariant(9, 3, 64, torch.bfloat16, None):
        pytest.skip("the fused attention kernel of this CPU is not row-invariant")
    together = world.run([(0, 500, 32)])[0]
    changed = []
    for i in range(32):
        monkeypatch.setattr(attention, "SPAN", 64 + 16 * (i % 5))
        changed.append(world.run([(0, 500 + i, 1)])[0])
    assert not torch.equal(together, torch.cat(changed))


def test_hidden_slots_may_hold_any_finite_value() -> None:
    world = World([300, 300], 6, 2, 16, torch.float32, False)
    before = world.run([(0, 200, 8)])[0]
    later = torch.arange(208, 300)
    slots = world.table[0][later // BLOCK] * BLOCK + later % BLOCK
    world.keys[slots], world.values[slots] = 1e4, -1e4
    world.keys[:BLOCK], world.values[:BLOCK] = 7e3, 7e3
    assert torch.equal(world.run([(0, 200, 8)])[0], before)


def test_a_run_at_the_end_of_the_pool_is_gathered() -> None:
    """The last span reaches past the pool's end, where no view can be taken."""
    world = World([250], 6, 2, 16, torch.float32, False)
    got = world.run([(0, 240, 10)])[0]
    torch.testing.assert_close(got.double(), world.textbook(0, 240, 10), rtol=1e-5, atol=1e-5)
