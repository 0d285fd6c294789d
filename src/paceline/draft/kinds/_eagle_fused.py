"""The EAGLE-3 drafter on a GPU: six launches a forward on the kernels of the target, pairs laid out by small kernels.

Made from the torch form by repacking its weights. Keys are numbered from a row's first pair on, so that attention runs
over them without a gap. Legend: R rows of the tables, B rows, C columns, H hidden, T taps, N listed ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ...core.batch import ForwardBatch
from ...kernels.linear import Linear, PlainLinear
from ...kernels.norm import RMSNorm
from ...kernels.rope import RopeTable
from ._eagle_layer import Eagle3Model, Eagle3Shape, Eagle3Weights, Pairs
from ._eagle_places import GROUP, TAP_RING, Lag, Placer

if TYPE_CHECKING:
    from ...cache.tables import RowTables
    from ...kernels.triton.attend import DevicePlan

_FEATURES = 1024
_SLOT_TILE = 128
_TURN = 8


@dataclass(frozen=True)
class FusedPairs(Pairs):
    """Pairs with their attention ``plan``; ``table`` [B, keys] int64 holds the slot of every key of a row. ``lengths``
    [B] int64: place of the row's pending token, or the end of a prompt chunk."""

    plan: DevicePlan
    table: torch.Tensor
    lengths: torch.Tensor


def fits(shape: Eagle3Shape, weights: Eagle3Weights) -> bool:
    """Whether the fused form exists for these sizes here: bfloat16 on CUDA, heads of a size the kernels have."""
    device, dtype = weights.embedding.device, weights.embedding.dtype
    if device.type != "cuda" or dtype != torch.bfloat16 or find_spec("triton") is None:
        return False
    from ...kernels.triton.launch import unusable_reason

    return (
        unusable_reason(device) is None
        and shape.head_dim in (64, 128, 256)
        and shape.hidden % 64 == 0
        and shape.target_hidden % 16 == 0
        and shape.intermediate % 16 == 0
        and shape.heads // shape.kv_heads <= 64
    )


class FusedEagle3(Eagle3Model):
    """The fused form. The weights of the norms are folded into the matrices behind them."""

    def __init__(self, shape: Eagle3Shape, weights: Eagle3Weights, max_len: int) -> None:
        from ...kernels.triton import attend
        from ...kernels.triton.launch import DeviceWeight

        device = weights.embedding.device
        super().__init__(shape, weights.embedding, weights.ids)
        self.split = attend.split_length(max_len)
        self.heads = attend.HeadLayout(shape.heads, shape.kv_heads, shape.head_dim, shape.scale, False, shape.eps)
        both = torch.cat([_norm(weights.input_norm), _norm(weights.hidden_norm)])
        self._fuse = DeviceWeight(_matrix(weights.fuse))
        self._qkv = DeviceWeight(_folded(_matrix(weights.qkv), both))
        self._out = DeviceWeight(_matrix(weights.out))
        gate_up = _folded(_matrix(weights.gate_up), _norm(weights.post_norm))
        self._gate_up = DeviceWeight(_in_turns(gate_up), gated=True)
        self._down = DeviceWeight(_matrix(weights.down))
        self._head = DeviceWeight(_folded(_matrix(weights.head), _norm(weights.norm)))
        self._angles = _angles(weights.rope, device)
        self._space = attend.Workspace(attend.new_arrivals(device))
        self._paged: attend.PagedLayer | None = None
        self._sums: torch.Tensor | None = None

    def attach(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        from ...kernels.triton.attend import PagedLayer

        self._paged = PagedLayer(keys, values, None, self._angles)

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        from ...kernels.triton.launch import product

        out = taps.new_empty(taps.shape[0], self.shape.hidden)
        product(taps, self._fuse, out)
        return out

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        from ...kernels.triton import attend
        from ...kernels.triton.launch import Fused, product, sums_of

        assert isinstance(pairs, FusedPairs)
        if self._paged is None:
            raise RuntimeError("no KV store is attached to this drafter")
        shape, rows, new = self.shape, hidden.shape[0], hidden.new_empty
        qkv, middle, out = new(rows, self.heads.width), new(rows, shape.hidden), new(rows, shape.hidden)
        gated = new(rows, shape.intermediate)
        sums = [new(rows, sums_of(shape.hidden), dtype=torch.float32) for _ in range(2)]
        product(self._joined(tokens, hidden), self._qkv, qkv)
        space = attend.Workspace(self._space.arrivals)
        mixed = attend.attend(pairs.plan, self.heads, self._paged, qkv, None, space)
        product(mixed, self._out, middle, Fused(None, sums[0], hidden))
        product(middle, self._gate_up, gated, Fused(sums[0], eps=shape.eps))
        product(gated, self._down, out, Fused(None, sums[1], middle))
        self._sums = sums[1]
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        from ...kernels.triton.launch import Fused, product

        assert self._sums is not None
        step = self._sums.shape[0] // hidden.shape[0]
        out = hidden.new_empty(hidden.shape[0], self.shape.listed, dtype=torch.float32)
        product(hidden, self._head, out, Fused(self._sums[step - 1 :: step].contiguous(), eps=self.shape.eps))
        return out

    def _joined(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        from ...kernels.triton.shifted import join_kernel

        width = self.shape.hidden
        out = hidden.new_empty(hidden.shape[0], 2 * width)
        join_kernel[(hidden.shape[0], 2)](
            tokens,
            self.embedding,
            hidden,
            out,
            hidden.stride(0),
            self.shape.eps,
            WIDTH=width,
            BLOCK=1 << (width - 1).bit_length(),
            num_warps=8,
        )
        return out


class FusedPlacer(Placer):
    """:class:`Placer` in few launches."""

    def __init__(self, layer: FusedEagle3, tables: RowTables) -> None:
        super().__init__(layer, tables)
        self._layer = layer
        # keys are read in steps of 64, behind the last one too
        self._keys = -(-(tables.max_model_len + 2 * _SLOT_TILE) // _SLOT_TILE) * _SLOT_TILE

    def lag(self, index: torch.Tensor, columns: int, wanted: torch.Tensor, lengths: torch.Tensor) -> Lag:
        from ...kernels.triton.shifted import take_kernel

        tokens, pairs = self._placed(index, columns, (lengths, wanted), None)
        memory = self.ring.memory
        width = memory.shape[2]
        taps = memory.new_empty(len(index) * columns, width)
        take_kernel[(len(index) * columns, -(-width // _FEATURES))](
            memory, taps, index, lengths, width, columns, RING=TAP_RING, BLOCK=_FEATURES
        )
        return Lag(tokens, taps, pairs)

    def step(self, index: torch.Tensor, offset: int, wanted: torch.Tensor, before: Pairs) -> Pairs:
        assert isinstance(before, FusedPairs)
        return self._placed(index, 1, (before.lengths, wanted), (1 + offset, before.table))[1]

    def chunk(self, batch: ForwardBatch, place: int, part: slice, first: int) -> Pairs:
        index = batch.indices[place : place + 1]
        end = batch.context_lens[place] + batch.query_lens[place]
        count = part.stop - part.start
        lengths = torch.full_like(index, end)
        table = self._slot_table(index, lengths)
        slots, numbers = batch.slots[GROUP][part], batch.positions[part] - first
        return self._planned((index, lengths), numbers, slots, table, (count, end - count - first, None))

    def keep(self, index: torch.Tensor, starts: torch.Tensor, taps: torch.Tensor, counts: torch.Tensor) -> None:
        from ...kernels.triton.shifted import keep_kernel

        rows, columns, width = taps.shape
        flat = taps.reshape(-1, width)
        tables = self._tables
        keep_kernel[(rows * columns, -(-width // _FEATURES))](
            flat,
            self.ring.memory,
            index,
            starts,
            counts,
            self.coverage.covered,
            tables.draft_length,
            tables.length,
            width,
            columns,
            flat.stride(0),
            starts.stride(0),
            RING=TAP_RING,
            BLOCK=_FEATURES,
        )

    def _placed(
        self,
        index: torch.Tensor,
        columns: int,
        rows: tuple[torch.Tensor, torch.Tensor],
        step: tuple[int, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, FusedPairs]:
        """Tokens [B * C] (of a lag) and pairs. ``rows``: lengths and whether they are wanted, [B]. ``step``: how far
        behind the length, and the chain's slot table; ``None`` for a lag."""
        from ...kernels.triton.shifted import place_kernel

        tables, (lengths, wanted) = self._tables, rows
        blocks = tables.block_table(GROUP)
        numbers, slots, tokens = (index.new_empty(len(index) * columns) for _ in range(3))
        place_kernel[(len(index),)](
            index,
            wanted.view(torch.int8),
            lengths,
            self.coverage.covered,
            tables.draft_length,
            tables.length,
            self.coverage.first,
            tables.limit,
            blocks,
            tables.history,
            numbers,
            slots,
            tokens,
            columns,
            0 if step is None else step[0],
            blocks.shape[1],
            tables.history.shape[1],
            LAG=step is None,
            SIZE=tables.block_size,
            C=1 << (columns - 1).bit_length(),
            num_warps=1,
        )
        table = self._slot_table(index, lengths) if step is None else step[1]
        bound = tables.max_model_len + columns
        return tokens, self._planned((index, lengths), numbers, slots, table, (columns, bound - columns, columns))

    def _slot_table(self, index: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        from ...kernels.triton.shifted import slot_kernel

        tables = self._tables
        blocks = tables.block_table(GROUP)
        table = index.new_empty(len(index), self._keys)
        slot_kernel[(len(index), self._keys // _SLOT_TILE)](
            index,
            lengths,
            self.coverage.first,
            blocks,
            table,
            2 * _SLOT_TILE,
            blocks.shape[1],
            self._keys,
            SIZE=tables.block_size,
            TILE=_SLOT_TILE,
            num_warps=4,
        )
        return table

    def _planned(
        self,
        rows_at: tuple[torch.Tensor, torch.Tensor],
        numbers: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        spans: tuple[int, int, int | None],
    ) -> FusedPairs:
        """``rows_at``: row indices and lengths [B]. ``spans``: queries per row, bound of the keys before them, and the
        width of a rectangle."""
        from ...kernels.shifted import ShiftedReads
        from ...kernels.triton.attend import plan_device

        (index, lengths), (count, context, width) = rows_at, spans
        rows = len(index)
        batch = ForwardBatch(
            tokens=numbers,
            positions=numbers,
            indices=index,
            query_lens=[count] * rows,
            context_lens=[context] * rows,
            slots={GROUP: slots},
            block_tables={GROUP: table},
            width=width,
        )
        plan = plan_device(batch, GROUP, self._layer.heads, (1, self._layer.split), None)
        places = numbers.view(rows, count)
        return FusedPairs(places, slots, ShiftedReads(table, 1, index, places, context + count), plan, table, lengths)


def _matrix(linear: Linear) -> torch.Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def _norm(norm: RMSNorm) -> torch.Tensor:
    """The weight as the formula has it, float32 [width]."""
    return norm.weight[: norm.width] if norm.doubled else norm.weight


def _folded(matrix: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (matrix.float() * weight).to(matrix.dtype)


def _in_turns(stacked: torch.Tensor) -> torch.Tensor:
    """[2I, H] gates, then ups -> the same rows in turns of 8 gates and 8 ups."""
    gate, up = (part.view(-1, _TURN, part.shape[1]) for part in stacked.chunk(2))
    return torch.stack((gate, up), 1).flatten(0, 2).contiguous()


def _angles(table: RopeTable, device: torch.device) -> torch.Tensor:
    """[positions, D] float32: D/2 cosines, then D/2 sines."""
    half = table.dim // 2
    return torch.cat((table.table[:, 0, :half], table.table[:, 1, half:]), -1).float().contiguous().to(device)
