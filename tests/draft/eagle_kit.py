"""A round loop without an engine for the EAGLE-3 drafter: what it proposes, against a model run over the whole text."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from tests.draft.kit import NoPort

from paceline.cache.groups import BlockGroupSpec, LayerKV
from paceline.cache.pool import BlockPool
from paceline.cache.store import KVStore
from paceline.cache.tables import RowTables
from paceline.core.batch import RoundBatch, Window
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.draft.base import TargetView
from paceline.draft.kinds._eagle_layer import Eagle3Shape, Eagle3Weights
from paceline.draft.kinds._eagle_places import GROUP
from paceline.draft.kinds._eagle_rows import Attachment, Eagle3Rows
from paceline.draft.kinds.eagle3 import Eagle3Drafter, random_eagle3
from paceline.engine.device_columns import advance_columns
from paceline.engine.draws import RowSampler
from paceline.sampling.accept import Accepted
from paceline.sampling.draw import draw_subset
from paceline.sampling.params import DrawParams

VOCABULARY, LONGEST, BLOCK = 40, 256, 4
SHAPE = Eagle3Shape(
    hidden=12, target_hidden=6, heads=4, kv_heads=2, head_dim=4, intermediate=10, listed=25, taps=(-1, 0, 1)
)
VIEW = TargetView(
    vocab_size=VOCABULARY,
    hidden_size=6,
    num_layers=2,
    max_model_len=LONGEST,
    eos_ids=(0,),
    device="cpu",
    dtype="float64",
)


@functools.cache
def drafter() -> Eagle3Drafter:
    return random_eagle3(VIEW, SHAPE, seed=3)


def tap_of(text: Sequence[int]) -> torch.Tensor:
    """What the target would show at the last position of ``text``: [T * target hidden], a function of all of it."""
    return _tap_of(tuple(text))


@functools.lru_cache(maxsize=4096)
def _tap_of(text: tuple[int, ...]) -> torch.Tensor:
    seed = functools.reduce(lambda state, token: (state * 1000003 + token + 1) % (1 << 40), text, 7)
    return torch.randn(3 * 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_tables(rows: int) -> RowTables:
    groups = (
        BlockGroupSpec("full", (LayerKV(0, 1, 2, 2), LayerKV(1, 1, 2, 2))),
        *drafter().kv_groups(VIEW),
    )
    counts = {group.name: rows * (LONGEST // BLOCK) + 1 for group in groups}
    store = KVStore(groups, counts, BLOCK, torch.float64)
    # what stands in unused memory must not matter
    for group in counts:
        for memory in store.tensors(group):
            memory.fill_(3.0)
    pools = {name: BlockPool(count, BLOCK) for name, count in counts.items()}
    return RowTables(rows, LONGEST, groups, pools, store)


@dataclass
class Loop:
    """Rows that decode with scripted acceptance. ``differences`` fills where proposals are not the reference's."""

    rows: int = 3
    seed: int = 0
    span: int = 3
    differences: list[str] = field(default_factory=list)
    compared: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.tables = make_tables(self.rows)
        sampler = RowSampler(self.tables)
        self.drafts: Eagle3Rows = drafter().open(replace(VIEW, tables=self.tables), sampler, NoPort())  # type: ignore[assignment]
        self.live = [self.start(number) for number in range(self.rows)]

    def start(self, number: int, chunk: int = 5) -> Row:
        """Admit a row, prefill its prompt in chunks, give it its first token."""
        prompt = [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(1, 14))]
        options = SamplingParams(temperature=(0.0, 0.7, 1.0)[number % 3])
        request = Request(f"r{number}", tuple(prompt), options, LONGEST - 40, (), 11 + number, 8)
        row = Row(request, -1, list(prompt))
        row.index = self.tables.acquire_index()  # type: ignore[assignment]
        self.tables.reserve(row.index, len(prompt))
        self.tables.write_row(row)
        self.drafts.open_row(row, None)
        self.prefill(row, 0, chunk)
        self.join(row)
        return row

    def prefill(self, row: Row, start: int, chunk: int) -> None:
        end = len(row.tokens)
        while start < end:
            tokens = row.tokens[start : min(start + chunk, end)]
            batch = self.tables.forward_batch([row.index], [tokens], [start], [row.position_limit])
            taps = torch.stack([tap_of(row.tokens[: start + n + 1]) for n in range(len(tokens))])
            self.drafts.prefill([row], batch, taps)
            start += len(tokens)

    def join(self, row: Row) -> None:
        row.length, row.step = len(row.tokens), 1
        row.pending = self.random.randrange(VOCABULARY)
        row.tokens.append(row.pending)
        self.tables.write_row(row)

    def round(self, depths: Sequence[int], *, on_device: bool, spans: Sequence[int] = ()) -> None:
        """One round: draft, accept some, commit. Rows in ``spans`` take their proposals from elsewhere (depth 0)."""
        depths = [0 if n in spans else depth for n, depth in enumerate(depths)]
        width = 1 + max(self.span if n in spans else depth for n, depth in enumerate(depths))
        for row in self.live:
            self.tables.reserve(row.index, min(row.length + 1 + width, row.position_limit))
        index = torch.tensor([row.index for row in self.live])
        batch = RoundBatch(self.live, index, depths)
        if on_device:
            self.drafts.before_device_round(self.live, depths, width)
            draft = self.drafts.draft_device(index, torch.tensor(depths), max(depths))
        else:
            draft = self.drafts.draft(batch)
        proposals = draft.to_lists()
        for row, depth, found in zip(self.live, depths, proposals, strict=True):
            self.compare(row, depth, found)
        for n in spans:
            proposals[n] = [self.random.randrange(VOCABULARY) for _ in range(self.span)]
        accepted = [self.random.randint(0, len(proposal)) for proposal in proposals]
        finish = self._commit_device if on_device else self._commit_host
        finish(batch, proposals, accepted, spans)
        for row in self.live:
            self.check_kv(row)

    def compare(self, row: Row, depth: int, found: list[int]) -> None:
        expected = proposals_of(row, depth, self.first(row))
        self.compared += depth
        if found != expected:
            self.differences.append(f"{row.request.id} at {row.length}: {found}, not {expected}")

    def check_kv(self, row: Row) -> None:
        """What is stored of the pairs that count as covered is what the reference has."""
        first, covered = self.first(row), int(self.tables.draft_length[row.index])
        hidden = [drafter().layer.weights.fuse.weight @ tap_of(row.tokens[:q]) for q in range(1, covered)]
        if covered <= first:
            return
        _, keys, values = _layer(drafter().layer.weights, row.tokens[:covered], hidden, first)
        blocks, places = torch.tensor(self.tables.blocks(row.index, GROUP)), torch.arange(first, covered)
        slots = blocks[places // BLOCK] * BLOCK + places % BLOCK
        store = self.tables.store
        for stored, expected in ((store.keys(2), keys), (store.values(2), values)):
            if not torch.allclose(stored[slots], expected, atol=1e-6):
                self.differences.append(f"{row.request.id}: what is stored below {covered} is not true")

    def first(self, row: Row) -> int:
        return 1

    def _emit(self, row: Row, proposal: Sequence[int], kept: int) -> list[int]:
        return [*proposal[:kept], self.random.randrange(VOCABULARY)]

    def _mirror(self, row: Row, emitted: Sequence[int]) -> None:
        row.length += len(emitted)
        row.step += len(emitted)
        row.generated += len(emitted)
        row.tokens.extend(emitted)
        row.pending = emitted[-1]

    def _taps(self, row: Row, window: Sequence[int]) -> torch.Tensor:
        text = row.tokens[: row.length]
        return torch.stack([tap_of([*text, *window[: n + 1]]) for n in range(len(window))])

    def _commit_host(self, batch, proposals, accepted, spans) -> None:  # type: ignore[no-untyped-def]
        windows = [[row.pending, *proposal] for row, proposal in zip(self.live, proposals, strict=True)]
        forward = self.tables.forward_batch(
            [row.index for row in self.live],
            windows,
            [row.length for row in self.live],
            [row.position_limit for row in self.live],
        )
        taps = torch.cat([self._taps(row, window) for row, window in zip(self.live, windows, strict=True)])
        for row, proposal, kept in zip(self.live, proposals, accepted, strict=True):
            self._mirror(row, self._emit(row, proposal, kept))
            self.tables.write_mirror(row)
        if spans:  # no order is promised, so the drafter may as well be told of all rows in this way
            self.drafts.consume(batch, Window(forward, taps), [1 + kept for kept in accepted])
        else:
            self.drafts.commit(batch, Window(forward, taps), accepted)

    def _commit_device(self, batch, proposals, accepted, spans) -> None:  # type: ignore[no-untyped-def]
        width = 1 + max(len(proposal) for proposal in proposals)
        windows = [
            [row.pending, *proposal, *[row.pending] * (width - 1 - len(proposal))]
            for row, proposal in zip(self.live, proposals, strict=True)
        ]
        counts = torch.tensor([len(proposal) + 1 for proposal in proposals])
        forward = self.tables.device_batch(batch.indices, torch.tensor(windows), counts)
        taps = torch.cat([self._taps(row, window) for row, window in zip(self.live, windows, strict=True)])
        bursts = [self._emit(row, p, kept) for row, p, kept in zip(self.live, proposals, accepted, strict=True)]
        draws = torch.tensor([[*burst, *[0] * (width - len(burst))] for burst in bursts])
        emitted, none = torch.tensor([len(burst) for burst in bursts]), torch.zeros(len(bursts), dtype=torch.bool)
        result = Accepted(emitted, torch.tensor(accepted), none, none, none)
        advance_columns(self.tables, batch.indices, draws, result)
        self.drafts.commit_device(batch.indices, Window(forward, taps), result.accepted)
        for row, burst in zip(self.live, bursts, strict=True):
            self._mirror(row, burst)

    def resume(self, number: int) -> None:
        """Take a row out and let another one with the same text go on from its blocks and what was captured."""
        old = self.live[number]
        attachment = self.drafts.capture(old, old.length)
        assert isinstance(attachment, Attachment)
        shared = self.tables.share(old.index, old.length)
        self.drafts.close_row(old)
        self.tables.release(old.index)
        self.tables.release_index(old.index)
        row = replace(old, index=self.tables.acquire_index() or 0)
        self.tables.adopt(row.index, shared, row.length)
        self.tables.unshare(shared)
        self.tables.make_writable(row.index, row.length)
        self.tables.write_row(row)
        self.drafts.open_row(row, attachment)
        self.live[number] = row


# -- the reference ---------------------------------------------------------------------------------------------------


def proposals_of(row: Row, depth: int, first: int = 1) -> list[int]:
    """What a model run anew over the whole text drafts: ``depth`` tokens behind ``row.tokens``."""
    weights = drafter().layer.weights
    tokens = list(row.tokens)
    hidden = [weights.fuse.weight @ tap_of(tokens[:place]) for place in range(1, len(tokens))]
    proposals: list[int] = []
    for offset in range(depth):
        outputs, _, _ = _layer(weights, tokens, hidden, first)
        state = F.rms_norm(outputs[-1], (SHAPE.hidden,), None, SHAPE.eps)
        drawn = _drawn(weights, weights.head.weight @ state, row, offset)
        proposals.append(drawn)
        tokens.append(drawn)
        hidden.append(outputs[-1])
    return proposals


def _drawn(weights: Eagle3Weights, logits: torch.Tensor, row: Row, offset: int) -> int:
    params = DrawParams.of([row.request.params], [row.request.seed], [row.step + offset])
    return int(draw_subset(logits.unsqueeze(0), weights.ids, params))


def _layer(
    weights: Eagle3Weights, tokens: Sequence[int], hidden: Sequence[torch.Tensor], first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, keys and values for the pairs (tokens[q], hidden[q - 1]), q = first ..: dense attention over them."""
    shape = SHAPE
    places = range(first, len(tokens))
    states = torch.stack([hidden[q - 1] for q in places])
    embedded = weights.embedding[torch.tensor([tokens[q] for q in places])]

    def normed(x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (shape.hidden,), None, shape.eps)

    qkv = torch.cat([normed(embedded), normed(states)], 1) @ weights.qkv.weight.T
    heads = qkv.view(len(places), -1, shape.head_dim)
    q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    q, k = _turned(q, places), _turned(k, places)
    wide = [part.repeat_interleave(shape.heads // shape.kv_heads, 1).transpose(0, 1) for part in (k, v)]
    mixed = F.scaled_dot_product_attention(q.transpose(0, 1), *wide, is_causal=True).transpose(0, 1).flatten(1)
    states = states + mixed @ weights.out.weight.T
    gate, up = (normed(states) @ weights.gate_up.weight.T).chunk(2, 1)
    return states + (F.silu(gate) * up) @ weights.down.weight.T, k, v


def _turned(x: torch.Tensor, places: range) -> torch.Tensor:
    """Rotary positions q - 1 on heads [n, heads, D]."""
    half = SHAPE.head_dim // 2
    frequencies = SHAPE.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = (torch.tensor(list(places), dtype=torch.float32) - 1).unsqueeze(1) * frequencies
    turn = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double()).unsqueeze(1)
    turned = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
    return torch.cat([turned.real, turned.imag], -1)
