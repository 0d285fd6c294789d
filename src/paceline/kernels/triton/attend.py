"""Attention launches on tensors: a plan per forward and block group, then one call per layer. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import e, log2
from typing import Any

import torch

from ...core.batch import ForwardBatch
from .attention import fold_kernel, row_kernel, split_kernel
from .launch import OPTIONS, chain
from .rotary import rotate_kernel

ROWS = 64
"""Query rows of a tile: tokens x the query heads that share a key head."""


KEYS = 64
"""Keys of one step: twice as many take a few per cent less time in one row, but leave room for one program only."""

_FOLD_INSIDE = 16
_LONG = 64
_RESIDENT = 264
_KEEP_WIDE = 1 << 31


def split_length(max_len: int) -> int:
    """Keys per split for a model that serves ``max_len`` positions: short ones keep the device busy with one row, long
    ones keep the sums that are stored small. Constant for a loaded model, since it decides the order of sums."""
    return 128 if max_len <= 4096 else 256 if max_len <= 16384 else 512 if max_len <= 65536 else 1024


@dataclass(frozen=True)
class HeadLayout:
    """Heads of a layer: ``heads`` query heads share ``kv_heads`` key heads of ``dim`` features. ``scale`` on scores.
    ``norm``: whether queries and keys are normed, with ``eps``."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    norm: bool
    eps: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def tokens(self) -> int:
        """Tokens of a query tile."""
        return ROWS // self.group

    @property
    def width(self) -> int:
        """Features of a row of the merged query, key and value product."""
        return (self.heads + 2 * self.kv_heads) * self.dim

    @property
    def sums(self) -> int:
        """Sums of squares kept per row of that product."""
        return self.width // 64 if self.norm else 0


@dataclass(frozen=True)
class PagedLayer:
    """One layer's keys and values [S, kv_heads, D], its q/k norm weights [2, D] and table of angles [positions, D] in
    float32 (cosines, then sines), each ``None`` where the family has none."""

    keys: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor | None
    angles: torch.Tensor | None


@dataclass(frozen=True)
class DevicePlan:
    """Where the queries of a forward stand and which tiles they form.

    ``width``: tokens per row of a rectangle, whose tiles need no list. Else ``short`` and ``long`` list the tiles
    [n, 3] int32 of short and long query runs: row, first token, number of tokens. ``splits``: most splits that a tile
    of a short run can have; the kernels find the true number on the device.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    window: int | None
    block: int
    split: int
    splits: int
    width: int | None
    rows: int
    short: torch.Tensor | None = None
    long: torch.Tensor | None = None
    held: int = 0

    @property
    def columns(self) -> int:
        return self.table.shape[1]


def plan_device(
    batch: ForwardBatch, group: str, shape: HeadLayout, store: tuple[int, int], window: int | None
) -> DevicePlan:
    """Plan one forward. ``store``: block size and keys per split. Copies to the device only for ragged batches."""
    block, split = store
    lens, contexts = batch.query_lens, batch.context_lens
    places = (batch.positions, batch.slots[group], batch.block_tables[group].contiguous(), window, block, split)
    if batch.width is not None:
        longest = max(contexts, default=0) + batch.width
        splits = _splits(longest, batch.width, split, window)
        held = min(batch.width, shape.tokens) * shape.group
        return DevicePlan(*places, splits=splits, width=batch.width, rows=len(lens), held=held)
    short, long = _tiles(lens, shape.tokens)
    few = [(c + n, n) for c, n in zip(contexts, lens, strict=True) if n <= _LONG]
    return DevicePlan(
        *places,
        splits=max((_splits(end, count, split, window) for end, count in few), default=0),
        width=None,
        rows=len(lens),
        short=_uploaded(short, batch.positions.device),
        long=_uploaded(long, batch.positions.device),
        held=max((tile[2] for tile in short), default=0) * shape.group,
    )


def _splits(end: int, count: int, split: int, window: int | None) -> int:
    """Most splits that ``count`` queries whose keys end at ``end`` or earlier can touch."""
    whole = -(-end // split)
    return whole if window is None else min(whole, -(-(window + count) // split) + 1)


def _tiles(lens: Sequence[int], tokens: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Tiles of short and of long query runs: row, first flat token, count."""
    short: list[tuple[int, int, int]] = []
    long: list[tuple[int, int, int]] = []
    first = 0
    for row, count in enumerate(lens):
        place = long if count > _LONG else short
        place.extend((row, first + at, min(tokens, count - at)) for at in range(0, count, tokens))
        first += count
    return short, long


def _uploaded(tiles: list[tuple[int, int, int]], device: torch.device) -> torch.Tensor | None:
    return torch.tensor(tiles, dtype=torch.int32).to(device, non_blocking=True) if tiles else None


@dataclass(eq=False)
class Workspace:
    """Memory that the attention launches of one forward share. ``arrivals``: counters for tiles, zero between launches;
    they outlive the forward."""

    arrivals: torch.Tensor
    sums: torch.Tensor | None = None
    marks: torch.Tensor | None = None

    def fit(self, tiles: int, plan: DevicePlan, dim: int) -> None:
        """Make room for the sums of ``tiles`` tiles."""
        stored = tiles * plan.splits * plan.held if plan.splits > 1 else 1
        if self.sums is None or self.sums.shape[0] < stored * dim:
            self.sums = torch.empty(stored * dim, dtype=torch.float32, device=self.arrivals.device)
            self.marks = torch.empty(stored * 2, dtype=torch.float32, device=self.arrivals.device)


def new_arrivals(device: torch.device) -> torch.Tensor:
    """Counters for a binding's :class:`Workspace`; forwards with more tiles fold splits in a launch of its own."""
    return torch.zeros(1 << 16, dtype=torch.int32, device=device)


def attend(
    plan: DevicePlan,
    shape: HeadLayout,
    layer: PagedLayer,
    qkv: torch.Tensor,
    sums: torch.Tensor | None,
    space: Workspace,
) -> torch.Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots, attend: [N, heads * D].

    ``qkv`` [N, (heads + 2 kv_heads) * D] is the merged product, ``sums`` its sums of squares per 64 features.
    """
    out = torch.empty((qkv.shape[0], shape.heads * shape.dim), dtype=qkv.dtype, device=qkv.device)
    call = _Call(plan, shape, layer, space, out)
    if plan.width is not None and plan.width <= shape.tokens:
        call.tiles(_Source(qkv, sums, 1 << (plan.width - 1).bit_length()), None)
        return out
    rotated = _Source(call.rotate(qkv, sums), None, 0)
    if plan.width is not None or plan.short is not None:
        call.tiles(rotated, plan.short)
    if plan.long is not None:
        call.rows(rotated, plan.long)
    return out


def in_one_program(tiles: int, splits: int, steps: int) -> bool:
    """Whether the splits of a tile, of ``steps`` steps each, had better run one after the other in one program.

    Compares estimates in microseconds for an NVIDIA H200. Both forms give the same bits; where ``splits`` is an upper
    bound, both take less time than estimated.
    """
    stored = 1 if splits <= _FOLD_INSIDE else 5
    beside = -(-tiles * splits // _RESIDENT) * (5 + steps) + stored
    alone = -(-tiles // _RESIDENT) * (5 + 1.4 * steps * splits)
    return alone < beside


@dataclass(frozen=True)
class _Source:
    """Queries: the raw product with its sums of squares if ``rotate`` (a power of two >= the window), else rotated."""

    q: torch.Tensor
    sums: torch.Tensor | None
    rotate: int


@dataclass(frozen=True)
class _Call:
    """The launches of one layer."""

    plan: DevicePlan
    shape: HeadLayout
    layer: PagedLayer
    space: Workspace
    out: torch.Tensor

    def rotate(self, qkv: torch.Tensor, sums: torch.Tensor | None) -> torch.Tensor:
        """Rotated queries [N, heads * D]; keys and values go to their slots."""
        plan, shape, layer, rows = self.plan, self.shape, self.layer, qkv.shape[0]
        q = torch.empty_like(self.out)
        rotate_kernel[(-(-rows // 16), shape.heads + 2 * shape.kv_heads)](
            qkv,
            sums,
            layer.weights,
            layer.angles,
            plan.positions,
            plan.slots,
            q,
            layer.keys,
            layer.values,
            rows,
            shape.eps,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            TILES=shape.sums,
            ROPE=self._positions(),
            D=shape.dim,
            R=16,
            num_warps=4,
            **OPTIONS,
        )
        return q

    def tiles(self, source: _Source, tiles: torch.Tensor | None) -> None:
        """Attend the tiles of short query runs, ``tiles`` or those of the rectangle, in the form that is faster."""
        plan, shape = self.plan, self.shape
        count = plan.rows * -(-(plan.width or 0) // shape.tokens) if tiles is None else tiles.shape[0]
        if in_one_program(count * shape.kv_heads, plan.splits, plan.split // KEYS):
            self.rows(source, tiles)
        else:
            self.splits(source, tiles, count * shape.kv_heads)

    def splits(self, source: _Source, tiles: torch.Tensor | None, programs: int) -> None:
        """One program per tile and split."""
        plan, shape, space = self.plan, self.shape, self.space
        space.fit(programs, plan, shape.dim)
        inside = plan.splits <= _FOLD_INSIDE and programs <= space.arrivals.shape[0]
        split_kernel[(programs, plan.splits)](
            *self._inputs(source, tiles),
            space.sums,
            space.marks,
            space.arrivals,
            self.out,
            plan.width or 0,
            plan.columns,
            plan.held,
            _scale(shape),
            shape.eps,
            FOLD=1 << (plan.held - 1).bit_length() if inside else 0,
            **self._constants(source),
        )
        if not inside:
            fold_kernel[(programs, plan.held)](
                space.sums,
                space.marks,
                plan.positions,
                tiles,
                self.out,
                plan.width or 0,
                plan.splits,
                plan.held,
                HEADS=shape.heads,
                KV_HEADS=shape.kv_heads,
                GROUP=shape.group,
                WINDOW=plan.window or 0,
                D=shape.dim,
                SPLIT=plan.split,
                num_warps=1,
                **OPTIONS,
            )

    def rows(self, source: _Source, tiles: torch.Tensor | None) -> None:
        """One program per tile."""
        plan, shape = self.plan, self.shape
        count = plan.rows * -(-(plan.width or 0) // shape.tokens) if tiles is None else tiles.shape[0]
        row_kernel[(count * shape.kv_heads,)](
            *self._inputs(source, tiles),
            self.out,
            plan.width or 0,
            plan.columns,
            _scale(shape),
            shape.eps,
            **self._constants(source),
        )

    def _inputs(self, source: _Source, tiles: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        plan, layer = self.plan, self.layer
        memory = (layer.weights, layer.angles, layer.keys, layer.values)
        return (source.q, source.sums, *memory, plan.table, plan.positions, plan.slots, tiles)

    def _constants(self, source: _Source) -> dict[str, Any]:
        plan, shape = self.plan, self.shape
        return {
            "HEADS": shape.heads,
            "KV_HEADS": shape.kv_heads,
            "GROUP": shape.group,
            "BLOCK": plan.block,
            "WINDOW": plan.window or 0,
            "WIDE": self.layer.keys.numel() >= _KEEP_WIDE,
            "TILES": shape.sums if source.rotate else 0,
            "ROPE": self._positions() if source.rotate else 0,
            "D": shape.dim,
            "KEYS": KEYS,
            "SPLIT": plan.split,
            "ROTATE": source.rotate,
            "EARLY": True,
            "num_warps": 4,
            "num_stages": 3,
            **chain(self.out.device),
            **OPTIONS,
        }

    def _positions(self) -> int:
        """Positions in the angle table; 0 for layers without."""
        return 0 if self.layer.angles is None else self.layer.angles.shape[0]


def _scale(shape: HeadLayout) -> float:
    """The scale of scores that are exponents of two."""
    return shape.scale * log2(e)
