"""The attention kernels against the torch reference, and the promise that company does not change a query's bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from paceline.core.batch import ForwardBatch
from paceline.kernels import attention as reference
from paceline.kernels.rope import RopeConfig, RopeTable, rotate
from paceline.kernels.triton import attend as device

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
TOLERANCE = 2e-2 if GPU else 2e-5
BLOCK = 16
POSITIONS = 640


@dataclass
class Case:
    """One layer's memory for some rows of up to POSITIONS positions, with every earlier key in place."""

    shape: device.HeadLayout
    window: int | None
    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        blocks = POSITIONS // BLOCK
        order = 1 + torch.randperm(self.rows * blocks, generator=generator)
        self.table = order.view(self.rows, blocks).to(DEVICE)
        slots = (1 + self.rows * blocks) * BLOCK
        heads, dim = self.shape.kv_heads, self.shape.dim
        self.memory = torch.randn((2, slots, heads, dim), generator=generator).to(DEVICE, DTYPE)
        # what every position of every row brings when it is its turn
        self.tokens = torch.randn((self.rows, POSITIONS, self.shape.width), generator=generator).to(DEVICE, DTYPE)
        self.weights = torch.rand((2, dim), generator=generator).add(0.5).to(DEVICE) if self.shape.norm else None
        self.rope = RopeTable(RopeConfig(dim=dim), POSITIONS, torch.float32, DEVICE)

    def batch(self, starts: Sequence[int], lens: Sequence[int], width: int | None) -> ForwardBatch:
        positions = torch.cat([torch.arange(at, at + n, device=DEVICE) for at, n in zip(starts, lens, strict=True)])
        owner = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens)).to(DEVICE)
        slots = self.table[owner, positions // BLOCK] * BLOCK + positions % BLOCK
        rows = torch.arange(len(lens), device=DEVICE)
        table = self.table[: len(lens)]
        return ForwardBatch(owner, positions, rows, lens, list(starts), {"full": slots}, {"full": table}, width)

    def run(self, batch: ForwardBatch, split: int = 128) -> torch.Tensor:
        """Attention output of the batch's tokens on a copy of the memory."""
        return self.attend(batch, self.memory.clone(), split)

    def attend(self, batch: ForwardBatch, memory: torch.Tensor, split: int = 128) -> torch.Tensor:
        qkv = self.tokens[batch.tokens, batch.positions].contiguous()
        half = self.shape.dim // 2
        table = self.rope.table
        angles = torch.cat((table[:, 0, :half], table[:, 1, half:]), -1).contiguous()
        layer = device.PagedLayer(memory[0], memory[1], self.weights, angles)
        plan = device.plan_device(batch, "full", self.shape, (BLOCK, split), self.window)
        sums = qkv.float().square().unflatten(1, (-1, 64)).sum(-1).contiguous() if self.shape.norm else None
        space = device.Workspace(device.new_arrivals(DEVICE))
        out = device.attend(plan, self.shape, layer, qkv, sums, space)
        assert not space.arrivals.any()
        return out

    def expected(self, batch: ForwardBatch) -> torch.Tensor:
        shape = self.shape
        qkv = self.tokens[batch.tokens, batch.positions].float().unflatten(1, (-1, shape.dim))
        memory = self.memory.float()
        qk, value = qkv[:, : shape.heads + shape.kv_heads], qkv[:, shape.heads + shape.kv_heads :]
        if self.weights is not None:
            qk = torch.nn.functional.rms_norm(qk, (shape.dim,), eps=shape.eps)
            qk = qk * self.weights.repeat_interleave(torch.tensor([shape.heads, shape.kv_heads], device=DEVICE), 0)
        qk = rotate(qk, *self.rope.at(batch.positions))
        memory[0].index_copy_(0, batch.slots["full"], qk[:, shape.heads :])
        memory[1].index_copy_(0, batch.slots["full"], value)
        exact = replace(batch, context_lens=batch.positions[_firsts(batch.query_lens)].tolist(), width=None)
        plan = reference.plan_attention(exact, "full", BLOCK, self.window)
        return reference.attend(plan, qk[:, : shape.heads], memory[0], memory[1], shape.scale)


def _firsts(lens: Sequence[int]) -> list[int]:
    return [sum(lens[:place]) for place in range(len(lens))]


def layout(heads: int, kv_heads: int, dim: int, norm: bool = False) -> device.HeadLayout:
    return device.HeadLayout(heads, kv_heads, dim, dim**-0.5, norm, 1e-6)


SHAPES = [layout(4, 1, 64, norm=True), layout(6, 2, 32), layout(2, 2, 128, norm=True)]
WINDOWS = [None, 150]


@pytest.fixture(params=[True, False], ids=["in a loop", "beside"])
def in_a_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the splits of a tile run one after the other in one program."""
    monkeypatch.setattr(device, "in_one_program", lambda *_: request.param)
    return bool(request.param)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("starts", "lens", "width"),
    [
        ([0], [5], None),
        ([300, 7], [1, 1], 1),
        ([254, 120], [4, 4], 4),
        ([40, 250], [30, 30], 30),
        ([10, 200, 511], [3, 70, 1], None),
    ],
    ids=["one prompt", "decode", "windows", "wide windows", "mixed"],
)
def test_attention_is_that_of_the_reference(
    in_a_loop: bool, shape: device.HeadLayout, window: int | None, starts: list[int], lens: list[int], width: int | None
) -> None:
    case = Case(shape, window, len(lens))
    batch = case.batch(starts, lens, width)
    found, expected = case.run(batch).float(), case.expected(batch)
    assert (found - expected).norm() / expected.norm() < TOLERANCE


@pytest.mark.parametrize("window", WINDOWS)
def test_an_upper_bound_of_the_context_changes_nothing(window: int | None) -> None:
    case = Case(SHAPES[0], window, 2)
    exact = case.batch([300, 7], [2, 2], 2)
    loose = replace(exact, context_lens=[600, 600])
    assert torch.equal(case.run(loose), case.run(exact))


@pytest.mark.parametrize("split", [128, 256])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_splits_are_folded_alike_inside_beside_and_in_a_loop(
    shape: device.HeadLayout, window: int | None, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(shape, window, 1)
    batch = case.batch([420], [8], 8)
    monkeypatch.setattr(device, "in_one_program", lambda *_: False)
    inside = case.run(batch, split)
    monkeypatch.setattr(device, "_FOLD_INSIDE", 0)
    assert torch.equal(case.run(batch, split), inside)
    monkeypatch.setattr(device, "in_one_program", lambda *_: True)
    assert torch.equal(case.run(batch, split), inside)
    monkeypatch.setattr(device, "_LONG", 1)
    assert torch.equal(case.run(case.batch([420], [8], None), split), inside)


def test_many_tiles_loop_over_their_splits_and_few_spread_them() -> None:
    assert not device.in_one_program(8, 5, 2)
    assert not device.in_one_program(8, 128, 16)
    assert device.in_one_program(256, 5, 2)
    assert device.in_one_program(8, 1, 2)


@pytest.mark.skipif(not GPU, reason="bits depend on the matrix units, which the interpreter does not have")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_query_has_the_same_bits_in_any_company(
    in_a_loop: bool, shape: device.HeadLayout, window: int | None
) -> None:
    case = Case(shape, window, 3)
    start, count = 380, 200
    whole = case.run(case.batch([start] * 3, [count] * 3, None))[:count]
    stored = case.memory.clone()
    for width in (1, 2, 5, 16, 17, 33):
        for at in (0, 3, 131 - width):
            _remember(case, start, at)
            for rows in (1, 3):
                found = case.run(case.batch([start + at] * rows, [width] * rows, width))[:width]
                assert torch.equal(found, whole[at : at + width]), (width, at, rows)
            case.memory.copy_(stored)


def _remember(case: Case, start: int, count: int) -> None:
    """Put the keys and values of the rows' first ``count`` tokens in place, as a forward of them would."""
    if count:
        case.attend(case.batch([start] * case.rows, [count] * case.rows, None), case.memory)


def test_splits_that_depended_on_the_length_would_be_seen() -> None:
    case = Case(SHAPES[0], None, 1)
    batch = case.batch([420], [1], 1)
    assert not torch.equal(case.run(batch, split=128), case.run(batch, split=256))


def test_values_that_are_not_finite_are_kept_out_of_the_memory() -> None:
    case = Case(SHAPES[1], None, 2)
    case.tokens[1, 50:53] = torch.nan
    for width in (3, None):
        batch = case.batch([50, 50], [3, 3], width)
        memory = case.memory.clone()
        assert torch.isfinite(case.attend(batch, memory)[:3]).all()
        assert torch.isfinite(memory).all()
