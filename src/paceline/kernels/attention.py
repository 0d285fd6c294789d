"""Paged attention of flat ragged query rows over the KV store: causal, grouped heads, sliding window, soft cap.

A plan is made once per forward and block group and used by all its layers. It knows no model and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

from ..core.batch import ForwardBatch
from . import flash

SPAN = 256
"""Keys are processed in spans at absolute multiples of this, each of fixed shape, so that a query's result cannot
depend on how many keys or queries share its call."""

QUERY_TILE = 128
"""Most query tokens of one call: longer chunks skip the spans that lie wholly in the future of their early tokens."""

GATHERED_BYTES = 128 << 10
"""Keys of several segments are copied together for one call if each segment has at most this many bytes of them: a
call of its own costs more than copying so little."""

HIDDEN = -1e30
"""Added to scores of keys a query may not see. Finite, so that a span hidden as a whole has a defined (unused) result
whose weight is exactly zero."""


@dataclass(frozen=True)
class Segment:
    """Consecutive query tokens of one row with the key spans they need.

    ``first``/``count``: place in the flat tokens. ``position``: absolute position of the first. ``start``: absolute
    position of the first key of the first span; ``spans``: how many. ``slot``: slot of the key at ``start`` if the
    row's blocks lie in one run, else ``None``. ``row``: place of the row in the batch.
    """

    row: int
    first: int
    count: int
    position: int
    start: int
    spans: int
    slot: int | None


@dataclass(frozen=True)
class Group:
    """Segments with the same number of tokens and of spans: ``numbers`` name them. ``tokens``: their flat places, or
    ``None`` if they are the whole forward in its order."""

    count: int
    spans: int
    numbers: tuple[int, ...]
    tokens: torch.Tensor | None


@dataclass
class AttentionPlan:
    """Segments of a forward for one block group, and masks and indices made on first use."""

    segments: Sequence[Segment]
    tables: torch.Tensor
    block_size: int
    window: int | None
    _masks: dict[tuple[int, torch.dtype, int], list[torch.Tensor]] = field(default_factory=dict)
    _slots: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def groups(self) -> list[Group]:
        """The segments by shape; most forwards have one group."""
        members: dict[tuple[int, int], list[int]] = {}
        for number, segment in enumerate(self.segments):
            members.setdefault((segment.count, segment.spans), []).append(number)
        if len(members) == 1:
            (shape, numbers), *_ = members.items()
            return [Group(*shape, tuple(numbers), None)]
        return [Group(*shape, tuple(numbers), self._places(numbers)) for shape, numbers in members.items()]

    def _places(self, numbers: Sequence[int]) -> torch.Tensor:
        chosen = [self.segments[number] for number in numbers]
        parts = [torch.arange(one.first, one.first + one.count, device=self.tables.device) for one in chosen]
        return torch.cat(parts)

    def masks(self, heads: int, dtype: torch.dtype, multiple: int) -> list[torch.Tensor]:
        """Per group [segments, spans, 1, rows, SPAN], added to scores; the rows of a segment are its tokens x
        ``heads``, padded to ``multiple``."""
        key = (heads, dtype, multiple)
        if key not in self._masks:
            self._masks[key] = [self._mask(group, heads, dtype, multiple) for group in self.groups]
        return self._masks[key]

    def _mask(self, group: Group, heads: int, dtype: torch.dtype, multiple: int) -> torch.Tensor:
        hidden = self._visible(group.numbers).logical_not_()
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, HIDDEN)
        shape = (len(group.numbers), group.count, heads, group.spans, SPAN)
        mask = mask.view(*shape[:2], 1, *shape[3:]).expand(shape).flatten(1, 2).transpose(1, 2)
        missing = -mask.shape[2] % multiple
        mask = F.pad(mask, (0, 0, 0, missing)) if missing else mask.contiguous()
        return mask.unsqueeze(2)

    def _visible(self, numbers: Sequence[int]) -> torch.Tensor:
        """Which keys each query of some segments of one group sees: bool [segments, count, spans * SPAN]."""
        chosen, device = [self.segments[number] for number in numbers], self.tables.device
        places = torch.tensor([[one.position, one.start] for one in chosen], device=device)
        queries = places[:, :1] + torch.arange(chosen[0].count, device=device)
        keys = (places[:, 1:] + torch.arange(chosen[0].spans * SPAN, device=device)).unsqueeze(1)
        seen = keys <= queries.unsqueeze(2)
        return seen if self.window is None else seen & (keys > queries.unsqueeze(2) - self.window)

    def visible(self, number: int) -> torch.Tensor:
        """Which keys each query of one segment sees: bool [count, spans * SPAN]."""
        return self._visible((number,))[0]

    def slots(self, *numbers: int) -> torch.Tensor:
        """Slots of the keys of segments of one group [segments * spans * SPAN], scratch where the table ends."""
        if numbers not in self._slots:
            chosen, device = [self.segments[number] for number in numbers], self.tables.device
            places = torch.tensor([[one.row, one.start] for one in chosen], device=device)
            keys = places[:, 1:] + torch.arange(chosen[0].spans * SPAN, device=device)
            blocks = keys.div(self.block_size, rounding_mode="floor")
            last = self.tables.shape[1] - 1
            entries = self.tables[places[:, :1], blocks.clamp_max(last)].masked_fill_(blocks > last, 0)
            self._slots[numbers] = (entries * self.block_size + keys % self.block_size).flatten()
        return self._slots[numbers]


def plan_attention(batch: ForwardBatch, group: str, block_size: int, window: int | None) -> AttentionPlan:
    """Cut the rows of a forward into segments; reads the block tables on the host when they live there."""
    tables = batch.block_tables[group]
    on_host = tables.device.type == "cpu"
    segments: list[Segment] = []
    first = 0
    for row, (count, context) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        blocks: list[int] | None = tables[row].tolist() if on_host else None
        for offset in range(0, count, QUERY_TILE):
            part = min(QUERY_TILE, count - offset)
            segments.append(_segment(row, (first + offset, part, context + offset), blocks, block_size, window))
        first += count
    return AttentionPlan(segments, tables, block_size, window)


def _segment(
    row: int, place: tuple[int, int, int], blocks: list[int] | None, block_size: int, window: int | None
) -> Segment:
    """``place``: first flat token, count, absolute position."""
    first, count, position = place
    start = 0 if window is None else max(0, position - window + 1) // SPAN * SPAN
    end = position + count
    spans = -(-(end - start) // SPAN)
    slot = None if blocks is None else _run_start(blocks[: -(-end // block_size)], start // block_size)
    return Segment(row, first, count, position, start, spans, None if slot is None else slot * block_size)


def _run_start(blocks: list[int], head: int) -> int | None:
    """Block number that logical block ``head`` has, or would have, if the blocks from ``head`` on lie in one run.

    Leading scratch blocks (freed behind a sliding window) are never seen by a query, so any block may stand for them.
    """
    first = head
    while first < len(blocks) - 1 and blocks[first] == 0:
        first += 1
    base = blocks[first] - (first - head)
    if base < 0 or blocks[first:] != list(range(blocks[first], blocks[first] + len(blocks) - first)):
        return None
    return base


def attend(
    plan: AttentionPlan,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention output [N, heads * Dv] of q [N, heads, D] over one layer's slots: keys [S, kv_heads, D], values
    [S, kv_heads, Dv]. The keys and values of the batch's own tokens must already stand in their slots."""
    traits = flash.traits(keys, values, q.shape[1], q.dtype) if softcap is None else None
    if traits is None:
        parts = [_plain(plan, number, q, (keys, values), (scale, softcap)) for number in range(len(plan.segments))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    masks = plan.masks(q.shape[1] // keys.shape[1], q.dtype, traits.multiple)
    out: torch.Tensor | None = None
    for group, mask in zip(plan.groups, masks, strict=True):
        chosen = q if group.tokens is None else q.index_select(0, group.tokens)
        if len(group.numbers) > 1 and group.spans * SPAN * keys[0].nbytes <= GATHERED_BYTES:
            gathered = [_gathered(plan, group.numbers, store) for store in (keys, values)]
            part = flash.attend_together(chosen, gathered[0], gathered[1], mask, scale)
        else:
            spans = [(_spans(plan, number, keys), _spans(plan, number, values)) for number in group.numbers]
            part = flash.attend_spans(chosen, spans, mask, scale)
        if group.tokens is None:
            return part
        out = part.new_empty(q.shape[0], part.shape[1]) if out is None else out
        out.index_copy_(0, group.tokens, part)
    return q.new_empty(0, q.shape[1] * values.shape[2]) if out is None else out


def _spans(plan: AttentionPlan, number: int, store: torch.Tensor) -> torch.Tensor:
    """Keys or values of a segment as [spans, kv_heads, SPAN, D]: a view where its blocks lie in one run."""
    segment = plan.segments[number]
    _, heads, dim = store.shape
    length = segment.spans * SPAN
    if segment.slot is not None and segment.slot + length <= store.shape[0]:
        stride = store.stride()
        return store.as_strided(
            (segment.spans, heads, SPAN, dim),
            (SPAN * stride[0], stride[1], stride[0], stride[2]),
            store.storage_offset() + segment.slot * stride[0],
        )
    return _gathered(plan, (number,), store)[0]


def _gathered(plan: AttentionPlan, numbers: tuple[int, ...], store: torch.Tensor) -> torch.Tensor:
    """Keys or values of segments of one group, copied: [segments, spans, kv_heads, SPAN, D]."""
    _, heads, dim = store.shape
    return store.index_select(0, plan.slots(*numbers)).view(len(numbers), -1, SPAN, heads, dim).transpose(2, 3)


def _plain(
    plan: AttentionPlan,
    number: int,
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    scoring: tuple[float, float | None],
) -> torch.Tensor:
    """Textbook attention of one segment, in float32 or wider: the form for float64, soft caps and other devices."""
    scale, softcap = scoring
    segment = plan.segments[number]
    q = q[segment.first : segment.first + segment.count]
    length = segment.position + segment.count - segment.start
    slots = plan.slots(number)[:length]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    key, value = (store.index_select(0, slots).transpose(0, 1).to(wide) for store in kv)
    count, heads, dim = q.shape
    shared = heads // key.shape[0]
    folded = q.to(wide).view(count, -1, shared, dim).transpose(0, 1).reshape(key.shape[0], count * shared, dim)
    scores = torch.bmm(folded, key.transpose(1, 2)).mul_(scale)
    if softcap is not None:
        scores = torch.tanh(scores.div_(softcap)).mul_(softcap)
    hidden = plan.visible(number)[:, :length].logical_not().repeat_interleave(shared, 0)
    weights = torch.softmax(scores.masked_fill_(hidden, -torch.inf), -1)
    out = torch.bmm(weights, value).view(key.shape[0], count, shared, -1).transpose(0, 1)
    return out.reshape(count, -1).to(q.dtype)


def row_invariant(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, softcap: float | None) -> bool:
    """Whether :func:`attend` gives each query the same bits whatever shares its forward, on the CPU at hand."""
    if softcap is not None:
        return False
    sample = torch.empty(1, kv_heads, dim, dtype=dtype)
    traits = flash.traits(sample, sample, heads, dtype)
    return traits is not None and traits.invariant
