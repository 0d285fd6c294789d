"""A drafter wrapper that keeps a log of every call and checks both sides of the drafter contract (spec 15.10).

It changes nothing: what it sees goes to the wrapped drafter and back. Findings are sentences in ``problems``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..cache.groups import BlockGroupSpec
from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..core.row import Row
from ..core.transaction import StateChange
from ..draft.base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView

if TYPE_CHECKING:
    import torch


@dataclass
class WatchedRow:
    """What the drafter was told about one row: ``covered`` inputs (prompt, then retained ones), its draft rounds.

    ``proposed`` holds one count per round in which it was asked for at least one token; ``accepted`` and ``positions``
    (the text position of the last proposal) one entry per round in which it proposed something.
    """

    request_id: str
    index: int
    prompt: tuple[int, ...]
    covered: int = 0
    joined: bool = False
    closed: bool = False
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    outstanding: tuple[int, ...] = ()


class WatchedDrafter(DraftProvider):
    """Wraps ``inner``. ``rows`` maps request id -> :class:`WatchedRow`; ``events`` is the call log in order;
    ``largest_prefill`` the most prompt tokens of one call."""

    def __init__(self, inner: DraftProvider) -> None:
        self.inner = inner
        self.id = inner.id
        self.external_tokens = inner.external_tokens
        self.free = inner.free
        self.weight_bytes = inner.weight_bytes
        self.vocab_size = 0
        self.problems: list[str] = []
        self.events: list[tuple[str, tuple[str, ...]]] = []
        self.rows: dict[str, WatchedRow] = {}
        self.largest_prefill = 0
        self._threads: set[int] = set()

    def kv_groups(self, view: TargetView) -> tuple[BlockGroupSpec, ...]:
        return self.inner.kv_groups(view)

    def target_taps(self, view: TargetView) -> tuple[int, ...]:
        return self.inner.target_taps(view)

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        self.vocab_size = view.vocab_size
        return _WatchedRows(self, self.inner.open(view, draw, constraints))

    def close(self) -> None:
        self.inner.close()

    def check(self, good: bool, problem: str) -> None:
        """Note ``problem`` unless ``good``; each sentence once."""
        if not good and problem not in self.problems:
            self.problems.append(problem)

    def log(self, method: str, rows: Sequence[Row]) -> list[WatchedRow]:
        """Enter a call and return the records of its rows."""
        self.events.append((method, tuple(row.request.id for row in rows)))
        self._threads.add(threading.get_ident())
        self.check(len(self._threads) == 1, f"{method} ran on a second thread")
        found = []
        for row in rows:
            record = self.rows.get(row.request.id)
            if record is None or record.closed:
                self.check(False, f"{method} for row {row.request.id}, which is not open")
                record = record or WatchedRow(row.request.id, row.index, row.request.prompt_ids)
            self.check(record.index == row.index, f"{method}: the index of row {row.request.id} changed")
            found.append(record)
        return found

    def open_record(self, row: Row) -> None:
        used = {r.index: r.request_id for r in self.rows.values() if not r.closed}
        self.check(row.request.id not in used.values(), f"open_row twice for {row.request.id}")
        self.check(row.index not in used, f"{row.request.id} shares index {row.index} with {used.get(row.index)}")
        self.rows[row.request.id] = WatchedRow(row.request.id, row.index, row.request.prompt_ids)
        self.log("open_row", [row])


class _WatchedRows(DraftRows):
    def __init__(self, owner: WatchedDrafter, inner: DraftRows) -> None:
        self._owner = owner
        self._inner = inner
        self.taps = inner.taps
        self.namespace = inner.namespace
        self.records = inner.records
        self.shifted = inner.shifted
        self.on_device = inner.on_device
        self.lags = inner.lags

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        self._owner.open_record(row)
        self._inner.open_row(row, checkpoint)

    def close_row(self, row: Row) -> None:
        (record,) = self._owner.log("close_row", [row])
        record.closed = True
        self._inner.close_row(row)

    def prepare_join(self, row: Row) -> StateChange:
        (record,) = self._owner.log("prepare_join", [row])
        self._owner.check(not record.joined, f"{record.request_id} joins twice")
        covered, prompt = record.covered, len(record.prompt)
        self._owner.check(covered == prompt, f"{record.request_id} joins with {covered} of {prompt} prompt tokens")
        return _WatchedJoin(self._owner, record, self._inner.prepare_join(row))

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: Any) -> None:
        records = self._owner.log("prefill", rows)
        self._owner.check(len(rows) == batch.num_rows, "prefill: rows and batch differ in number")
        tokens = batch.tokens.tolist()
        self._owner.largest_prefill = max(self._owner.largest_prefill, len(tokens))
        self._owner.check(context.shape[0] == len(tokens), "prefill: context and batch differ in length")
        at = 0
        for record, start, count in zip(records, batch.context_lens, batch.query_lens, strict=False):
            chunk = tuple(tokens[at : at + count])
            at += count
            expected = record.prompt[start : start + count]
            self._owner.check(start == record.covered, f"prefill of {record.request_id} leaves a gap or repeats")
            self._owner.check(chunk == expected, f"prefill of {record.request_id}: not its prompt")
            record.covered += count
        self._inner.prefill(rows, batch, context)

    def draft(self, batch: RoundBatch) -> Draft:
        records = self._owner.log("draft", batch.rows)
        for record, row, depth in zip(records, batch.rows, batch.depths, strict=True):
            self._check_request(record, row, depth)
        draft = self._inner.draft(batch)
        self._check_draft(records, batch, draft)
        return draft

    def _check_request(self, record: WatchedRow, row: Row, depth: int) -> None:
        check, name = self._owner.check, record.request_id
        check(record.joined, f"draft for {name} before it joined")
        check(0 <= depth <= row.request.draft_cap, f"draft for {name}: depth {depth}, cap {row.request.draft_cap}")
        check(depth <= row.remaining, f"draft for {name}: depth {depth} past its budget {row.remaining}")
        check(row.tokens[-1] == row.pending, f"draft for {name}: pending is not the newest token")
        check(row.length == len(row.tokens) - 1, f"draft for {name}: length {row.length}, text {len(row.tokens)}")
        check(record.covered <= row.length, f"draft for {name}: drafter covers more than the target")

    def _check_draft(self, records: Sequence[WatchedRow], batch: RoundBatch, draft: Draft) -> None:
        check, lists = self._owner.check, draft.to_lists()
        if len(lists) != len(records):
            check(False, f"the drafter answered {len(records)} rows with {len(lists)}")
            return
        for record, row, depth, proposal in zip(records, batch.rows, batch.depths, lists, strict=True):
            name = record.request_id
            check(len(proposal) <= depth, f"the drafter proposed {len(proposal)} tokens at depth {depth}")
            inside = all(0 <= token < self._owner.vocab_size for token in proposal)
            check(inside, f"the drafter proposed ids outside the vocabulary: {proposal}")
            if depth > 0:
                record.proposed.append(len(proposal))
            if proposal:
                record.positions.append(row.length + len(proposal))
                check(record.positions[-1] < row.position_limit, f"{name} drafts past its last position")
            record.outstanding = tuple(proposal)

    def preview(self, batch: RoundBatch) -> Draft | None:
        self._owner.log("preview", batch.rows)
        return self._inner.preview(batch)

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        records = self._owner.log("commit", batch.rows)
        self._check_window("commit", records, window)
        self._owner.check(len(accepted) == len(records), "commit: rows and counts differ in number")
        for record, count in zip(records, accepted, strict=False):
            most = len(record.outstanding)
            self._owner.check(0 <= count <= most, f"commit of {record.request_id}: {count} of {most} proposals")
            if most:
                record.accepted.append(count)
            record.covered += 1 + count
            record.outstanding = ()
        self._inner.commit(batch, window, accepted)

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        records = self._owner.log("consume", batch.rows)
        for record, count, width in zip(records, counts, window.batch.query_lens, strict=True):
            self._owner.check(1 <= count <= width, f"consume of {record.request_id}: {count} of {width} inputs")
            record.covered += count
            record.outstanding = ()
        self._inner.consume(batch, window, counts)

    def _check_window(self, method: str, records: Sequence[WatchedRow], window: Window) -> None:
        """Each row's part of the window is its pending token and its proposals, right after what it covered. A gate may
        have left out the last proposals."""
        check, tokens, at = self._owner.check, window.batch.tokens.tolist(), 0
        check(window.context.shape[0] == len(tokens), f"{method}: context and window differ in length")
        check(window.batch.num_rows == len(records), f"{method}: window and rows differ in number")
        for record, start, width in zip(records, window.batch.context_lens, window.batch.query_lens, strict=False):
            inputs = tuple(tokens[at : at + width])
            at += width
            name, covered = record.request_id, record.covered
            check(start == covered, f"{method} of {name}: window at {start}, covered {covered}")
            check(
                inputs[1:] == record.outstanding[: width - 1], f"{method} of {name}: the window holds other proposals"
            )

    def before_device_round(self, rows: Sequence[Row], depths: Sequence[int], width: int) -> None:
        self._owner.log("before_device_round", rows)
        self._inner.before_device_round(rows, depths, width)

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        draft = self._inner.draft_device(index, depths, depth)
        check, lists = self._owner.check, draft.to_lists()
        self._owner.events.append(("draft_device", ()))
        check(draft.tokens.shape == (len(index), depth), f"draft_device gave tokens of shape {draft.tokens.shape}")
        for proposal, most in zip(lists, depths.tolist(), strict=True):
            check(len(proposal) <= most, f"the drafter proposed {len(proposal)} tokens at depth {most}")
            inside = all(0 <= token < self._owner.vocab_size for token in proposal)
            check(inside, f"the drafter proposed ids outside the vocabulary: {proposal}")
        return draft

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        self._owner.events.append(("commit_device", ()))
        opened = {record.index: record for record in self._owner.rows.values() if not record.closed}
        starts = window.batch.context_lens
        for place, start, count in zip(index.tolist(), starts, accepted.tolist(), strict=True):
            if place in opened:  # a row that has ended may still be named by a round that ran ahead
                opened[place].covered = start + 1 + count
                opened[place].outstanding = ()
        self._inner.commit_device(index, window, accepted)

    def catch_up(self, rows: Sequence[Row]) -> None:
        self._owner.log("catch_up", rows)
        self._inner.catch_up(rows)

    def capture(self, row: Row, length: int) -> Any | None:
        self._owner.log("capture", [row])
        return self._inner.capture(row, length)

    def close(self) -> None:
        self._owner.events.append(("close", ()))
        left = [record.request_id for record in self._owner.rows.values() if not record.closed]
        self._owner.check(not left, f"closed while rows {left} were open")
        self._inner.close()


class _WatchedJoin:
    """The wrapped join: exactly one of commit and undo, once."""

    def __init__(self, owner: WatchedDrafter, record: WatchedRow, inner: StateChange) -> None:
        self._owner = owner
        self._record = record
        self._inner = inner
        self._done = False

    def _once(self) -> None:
        self._owner.check(not self._done, f"the join of {self._record.request_id} ended twice")
        self._done = True

    def commit(self) -> None:
        self._once()
        self._record.joined = True
        self._inner.commit()

    def undo(self) -> None:
        self._once()
        self._inner.undo()
