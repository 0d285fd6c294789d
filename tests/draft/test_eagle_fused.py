"""The fused EAGLE-3 drafter against its torch form: the same places, the same keys and values up to rounding."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch

from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.batch import ForwardBatch, Window
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.draft.base import TargetView
from paceline.draft.kinds._eagle_fused import FusedEagle3, FusedPlacer, fits
from paceline.draft.kinds._eagle_layer import Eagle3Layer, Eagle3Model, Eagle3Shape, Eagle3Weights
from paceline.draft.kinds._eagle_places import GROUP, TAP_RING, Placer
from paceline.draft.kinds._eagle_rows import Eagle3Rows
from paceline.draft.kinds.eagle3 import Eagle3Drafter
from paceline.engine.draws import RowSampler
from paceline.kernels.linear import PlainLinear
from paceline.kernels.norm import RMSNorm
from paceline.kernels.rope import RopeConfig, RopeTable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: The interpreter multiplies float32 only.
DTYPE, NEAR = (torch.bfloat16, 1e-2) if DEVICE == "cuda" else (torch.float32, 1e-5)
SHAPE = Eagle3Shape(
    hidden=64, target_hidden=32, heads=2, kv_heads=1, head_dim=64, intermediate=64, listed=48, taps=(0, 1)
)
VIEW = TargetView(64, 32, 2, 100, (0,), DEVICE, str(DTYPE).removeprefix("torch."))
LAYER = VIEW.num_layers


@functools.cache
def weights() -> Eagle3Weights:
    generator = torch.Generator().manual_seed(4)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        noise = torch.randn(rows, columns, generator=generator) * (scale / columns**0.5)
        return noise.to(DTYPE).to(DEVICE)

    def linear(rows: int, columns: int) -> PlainLinear:
        return PlainLinear(matrix(rows, columns), None)

    def norm() -> RMSNorm:
        return RMSNorm((torch.rand(64, generator=generator) + 0.5).to(DEVICE), 1e-6, DTYPE)

    rope = RopeTable(RopeConfig(64, max_len=100, trained_len=100), 100, DTYPE, torch.device(DEVICE))
    return Eagle3Weights(
        embedding=matrix(64, 64, 8.0),
        fuse=linear(64, 64),
        input_norm=norm(),
        hidden_norm=norm(),
        qkv=linear(4 * 64, 128),
        out=linear(64, 128),
        post_norm=norm(),
        gate_up=linear(128, 64),
        down=linear(64, 64),
        norm=norm(),
        head=linear(48, 64),
        rope=rope,
        ids=torch.arange(0, 64, device=DEVICE)[:48],
    )


class Session:
    """Two rows of one form of the drafter, driven by the same rounds."""

    def __init__(self, model: Eagle3Model, placer: type[Placer]) -> None:
        groups = Eagle3Drafter(model, 0).kv_groups(VIEW)
        store = KVStore(groups, {GROUP: 15}, 16, DTYPE, DEVICE)
        self.tables = RowTables(2, VIEW.max_model_len, groups, {GROUP: BlockPool(15, 16)}, store, DEVICE)
        model.attach(store.keys(LAYER), store.values(LAYER))
        self.drafts = Eagle3Rows(model, self.tables, RowSampler(self.tables), placer(model, self.tables))  # type: ignore[arg-type]
        self.rows = [self._admit(number) for number in range(2)]
        self.index = torch.tensor([row.index for row in self.rows], device=DEVICE)

    def _admit(self, number: int) -> Row:
        prompt = tuple((7 * place + 3 * number) % 64 for place in range(9 + 12 * number))
        row = Row(Request(f"r{number}", prompt, SamplingParams(temperature=0.0), 60, (), 5, 4), -1, list(prompt))
        row.index = self.tables.acquire_index() or 0
        self.tables.reserve(row.index, 70)
        self.tables.write_row(row)
        self.drafts.open_row(row, None)
        for start, end in ((0, 6), (6, len(prompt))):
            batch = self.tables.forward_batch([row.index], [prompt[start:end]], [start], [row.position_limit])
            self.drafts.prefill([row], batch, _taps(end - start, number + start))
        row.length, row.step, row.pending = len(prompt), 1, 11
        row.tokens.append(11)
        self.tables.write_row(row)
        return row

    def round(self, depth: int, accepted: list[int], seed: int) -> list[list[int]]:
        tables, width = self.tables, 3
        self.drafts.before_device_round(self.rows, [depth] * 2, width)
        draft = self.drafts.draft_device(self.index, torch.tensor([depth, depth], device=DEVICE), depth)
        positions = (tables.length[self.index].unsqueeze(1) + torch.arange(width, device=DEVICE)).flatten()
        batch = ForwardBatch(positions, positions, self.index, [width] * 2, [0] * 2, {}, {}, width)
        kept = torch.tensor(accepted, device=DEVICE)
        draws = torch.tensor([[5, 9, 13], [2, 4, 8]], device=DEVICE) + seed
        tables.append_draws(self.index, draws, kept + 1)
        tables.length[self.index] += kept + 1
        self.drafts.commit_device(self.index, Window(batch, _taps(2 * width, seed)), kept)
        return draft.to_lists()

    def stored(self, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(1, int(self.tables.draft_length[row.index]), device=DEVICE)
        slots = self.tables.block_table(GROUP)[row.index][places // 16] * 16 + places % 16
        store = self.tables.store
        assert store is not None
        return store.keys(LAYER)[slots].float(), store.values(LAYER)[slots].float()


def _taps(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)).to(DTYPE).to(DEVICE)


def check_forms(left: Session, right: Session) -> None:
    for depth, accepted, seed in ((2, [1, 2], 1), (0, [0, 0], 2), (2, [2, 0], 3)):
        proposals = [session.round(depth, accepted, seed) for session in (left, right)]
        assert [len(row) for row in proposals[0]] == [len(row) for row in proposals[1]] == [depth] * 2
    assert torch.equal(left.tables.draft_length, right.tables.draft_length)
    for mine, theirs in zip(left.rows, right.rows, strict=True):
        for ours, expected in zip(left.stored(mine), right.stored(theirs), strict=True):
            assert len(expected) > 8
            assert float((ours - expected).norm() / expected.norm()) < NEAR


def test_both_forms_store_the_same():
    fused, plain = FusedEagle3(SHAPE, weights(), VIEW.max_model_len), Eagle3Layer(SHAPE, weights())
    check_forms(Session(fused, FusedPlacer), Session(plain, Placer))


def no_norm(layer: Eagle3Layer) -> None:
    layer.weights = replace(layer.weights, hidden_norm=RMSNorm(torch.ones(64, device=DEVICE), 1e-6, DTYPE))


def other_taps(layer: Eagle3Layer) -> None:
    layer.fuse = lambda taps: layer.weights.fuse(taps.flip(1))  # type: ignore[method-assign]


@pytest.mark.parametrize("break_it", [no_norm, other_taps])
def test_other_forms_are_noticed(break_it):
    fused, plain = FusedEagle3(SHAPE, weights(), VIEW.max_model_len), Eagle3Layer(SHAPE, weights())
    break_it(plain)
    left, right = Session(fused, FusedPlacer), Session(plain, Placer)
    with pytest.raises(AssertionError):
        check_forms(left, right)


def test_the_ring_by_kernels_is_the_ring_by_tensors():
    fused = FusedEagle3(SHAPE, weights(), VIEW.max_model_len)
    left, right = Session(fused, FusedPlacer), Session(Eagle3Layer(SHAPE, weights()), Placer)
    taps, counts = _taps(2 * 70, 9).view(2, 70, 64), torch.tensor([70, 3], device=DEVICE)
    starts = torch.tensor([20, 30], device=DEVICE)
    for session in (left, right):
        session.drafts._placer.keep(session.index, starts, taps, counts)
    kept = [session.drafts._placer.ring.memory[:, :TAP_RING] for session in (left, right)]
    assert torch.equal(*kept)


def test_where_the_fused_form_exists():
    assert fits(SHAPE, weights()) == (DEVICE == "cuda")
    assert not fits(replace(SHAPE, head_dim=8), weights())
