"""Attention launches on tensors: a plan per forward and block group, then one call per layer. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import e, log2

import torch

from ...core.batch import ForwardBatch
from .attention import fold_kernel, prompt_kernel, split_kernel
from .launch import OPTIONS, chain
from .rotary import rotate_kernel

ROWS = 64
"""Query rows of a tile: tokens x the query heads that share a key head."""


_FOLD_INSIDE = 16
_LONG = 64
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
    def keys(self) -> int:
        """Keys of one step, as many as fit beside each other."""
        return 128 if self.dim <= 128 else 64

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
    """One layer's keys and values [S, kv_heads, D], its q/k norm weights [2, D] and angle table [positions, D], float32,
    cosines then sines; each ``None`` where the family has none."""

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
    if plan.width is not None and plan.width <= shape.tokens:
        _split(plan, shape, layer, (qkv, sums), space, None, out)
        return out
    q = torch.empty_like(out)
    _rotate(plan, shape, layer, (qkv, sums), q)
    if plan.width is not None or plan.short is not None:
        _split(plan, shape, layer, (q, None), space, plan.short, out)
    if plan.long is not None:
        _prompt(plan, shape, layer, q, out)
    return out


def _scale(shape: HeadLayout) -> float:
    return shape.scale * log2(e)


def _wide(layer: PagedLayer) -> bool:
    return layer.keys.numel() >= _KEEP_WIDE


def _rotate(
    plan: DevicePlan,
    shape: HeadLayout,
    layer: PagedLayer,
    source: tuple[torch.Tensor, torch.Tensor | None],
    q: torch.Tensor,
) -> None:
    qkv, sums = source
    rows = qkv.shape[0]
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
        ROPE=0 if layer.angles is None else layer.angles.shape[0],
        D=shape.dim,
        R=16,
        num_warps=4,
        **OPTIONS,
    )


def _split(
    plan: DevicePlan,
    shape: HeadLayout,
    layer: PagedLayer,
    source: tuple[torch.Tensor, torch.Tensor | None],
    space: Workspace,
    tiles: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """``source``: the raw product and its sums for windows of one tile, else rotated queries alone."""
    raw = tiles is None and plan.width is not None and plan.width <= shape.tokens
    width = plan.width or 0
    count = plan.rows * -(-width // shape.tokens) if tiles is None else tiles.shape[0]
    programs = count * shape.kv_heads
    space.fit(programs, plan, shape.dim)
    inside = plan.splits <= _FOLD_INSIDE and programs <= space.arrivals.shape[0]
    common = {
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "WINDOW": plan.window or 0,
        "D": shape.dim,
        "SPLIT": plan.split,
    }
    split_kernel[(programs, plan.splits)](
        source[0],
        source[1],
        layer.weights,
        layer.angles,
        layer.keys,
        layer.values,
        plan.table,
        plan.positions,
        plan.slots,
        tiles,
        space.sums,
        space.marks,
        space.arrivals,
        out,
        width,
        plan.columns,
        plan.held,
        _scale(shape),
        shape.eps,
        BLOCK=plan.block,
        WIDE=_wide(layer),
        TILES=shape.sums if raw else 0,
        ROPE=0 if layer.angles is None or not raw else layer.angles.shape[0],
        KEYS=shape.keys,
        ROTATE=1 << (width - 1).bit_length() if raw else 0,
        FOLD=1 << (plan.held - 1).bit_length() if inside else 0,
        num_warps=4,
        num_stages=2 if plan.split == shape.keys else 3,
        **chain(out.device),
        **common,
        **OPTIONS,
    )
    if not inside:
        fold_kernel[(programs, plan.held)](
            space.sums,
            space.marks,
            plan.positions,
            tiles,
            out,
            width,
            plan.splits,
            plan.held,
            num_warps=1,
            **common,
            **OPTIONS,
        )


def _prompt(plan: DevicePlan, shape: HeadLayout, layer: PagedLayer, q: torch.Tensor, out: torch.Tensor) -> None:
    tiles = plan.long
    assert tiles is not None
    prompt_kernel[(tiles.shape[0] * shape.kv_heads,)](
        q,
        layer.keys,
        layer.values,
        plan.table,
        plan.positions,
        tiles,
        out,
        0,
        plan.columns,
        _scale(shape),
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        GROUP=shape.group,
        BLOCK=plan.block,
        WINDOW=plan.window or 0,
        WIDE=_wide(layer),
        D=shape.dim,
        KEYS=shape.keys,
        SPLIT=plan.split,
        num_warps=4,
        num_stages=2,
        **OPTIONS,
    )
