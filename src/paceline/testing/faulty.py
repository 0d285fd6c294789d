"""Drafters that break: one raises at a chosen call, one leaves the contract. Their engine must contain both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..cache.groups import BlockGroupSpec
from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..core.row import Row
from ..core.transaction import StateChange
from ..draft.base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView

if TYPE_CHECKING:
    import torch

Method = Literal[
    "open", "open_row", "close_row", "prepare_join", "prefill", "draft", "commit", "consume", "catch_up", "close"
]
METHODS: tuple[Method, ...] = get_args(Method)

Breach = Literal[
    "too_long", "outside_vocabulary", "negative", "length_past_width", "negative_length", "row_missing", "no_draft"
]
BREACHES: tuple[Breach, ...] = get_args(Breach)


class DrafterBroke(RuntimeError):
    """Raised on purpose by :class:`FailingDrafter`."""


class FailingDrafter(DraftProvider):
    """Passes everything on to ``inner`` and raises :class:`DrafterBroke` at call ``call`` (from 1) of ``method``.

    With ``every`` it also raises at all later calls. ``raised`` counts what it raised.
    """

    def __init__(self, inner: DraftProvider, method: Method, call: int = 1, *, every: bool = False) -> None:
        self.id = f"failing-{method}-{call}"
        self.external_tokens = inner.external_tokens
        self.free = inner.free
        self.weight_bytes = inner.weight_bytes
        self.raised = 0
        self._inner = inner
        self._method = method
        self._call = call
        self._every = every
        self._calls = 0

    def hit(self, method: Method) -> None:
        """Count a call of ``method`` and raise if it is the chosen one."""
        if method != self._method:
            return
        self._calls += 1
        if self._calls == self._call or (self._every and self._calls > self._call):
            self.raised += 1
            raise DrafterBroke(f"{method}, call {self._calls}")

    def kv_groups(self, view: TargetView) -> tuple[BlockGroupSpec, ...]:
        return self._inner.kv_groups(view)

    def target_taps(self, view: TargetView) -> tuple[int, ...]:
        return self._inner.target_taps(view)

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        self.hit("open")
        return _FailingRows(self, self._inner.open(view, draw, constraints))

    def close(self) -> None:
        self._inner.close()


class _FailingRows(DraftRows):
    def __init__(self, owner: FailingDrafter, inner: DraftRows) -> None:
        self._owner = owner
        self._inner = inner
        self.taps = inner.taps
        self.namespace = inner.namespace
        self.records = inner.records
        self.shifted = inner.shifted
        self.on_device = inner.on_device
        self.lags = inner.lags

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        self._owner.hit("open_row")
        self._inner.open_row(row, checkpoint)

    def close_row(self, row: Row) -> None:
        self._inner.close_row(row)
        self._owner.hit("close_row")

    def prepare_join(self, row: Row) -> StateChange:
        self._owner.hit("prepare_join")
        return self._inner.prepare_join(row)

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: Any) -> None:
        self._owner.hit("prefill")
        self._inner.prefill(rows, batch, context)

    def draft(self, batch: RoundBatch) -> Draft:
        self._owner.hit("draft")
        return self._inner.draft(batch)

    def preview(self, batch: RoundBatch) -> Draft | None:
        return self._inner.preview(batch)

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        self._owner.hit("commit")
        self._inner.commit(batch, window, accepted)

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        self._owner.hit("consume")
        self._inner.consume(batch, window, counts)

    def before_device_round(self, rows: Sequence[Row], depths: Sequence[int], width: int) -> None:
        self._inner.before_device_round(rows, depths, width)

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        self._owner.hit("draft")
        return self._inner.draft_device(index, depths, depth)

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        self._owner.hit("commit")
        self._inner.commit_device(index, window, accepted)

    def catch_up(self, rows: Sequence[Row]) -> None:
        self._owner.hit("catch_up")
        self._inner.catch_up(rows)

    def capture(self, row: Row, length: int) -> Any | None:
        return self._inner.capture(row, length)

    def close(self) -> None:
        self._inner.close()
        self._owner.hit("close")


class OutOfContractDrafter(DraftProvider):
    """Breaks the contract of ``draft`` in one way, every round: what the engine cannot trust it has to drop.

    ``row_missing`` returns one row too few, ``length_past_width`` lengths beyond the tokens' width, ``no_draft``
    something that is no :class:`Draft`.
    """

    external_tokens = True
    free = True

    def __init__(self, breach: Breach) -> None:
        self.id = f"out-of-contract-{breach}"
        self.breach = breach
        self.vocab_size = 0
        self.asked = 0

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        self.vocab_size = view.vocab_size
        return _OutOfContractRows(self)


class _OutOfContractRows(DraftRows):
    def __init__(self, owner: OutOfContractDrafter) -> None:
        self._owner = owner

    def draft(self, batch: RoundBatch) -> Draft:
        import torch

        self._owner.asked += 1
        breach, depths = self._owner.breach, list(batch.depths)
        fill = {"outside_vocabulary": self._owner.vocab_size + 7, "negative": -3}.get(breach, 5)
        extra = 3 if breach == "too_long" else 0
        good = Draft.from_lists([[fill] * (depth + extra) for depth in depths])
        if breach == "row_missing":
            return Draft(good.tokens[1:], good.lengths[1:])
        if breach == "length_past_width":
            return Draft(good.tokens, good.lengths + 4)
        if breach == "negative_length":
            return Draft(good.tokens, torch.full_like(good.lengths, -1))
        if breach == "no_draft":
            return None  # type: ignore[return-value]
        return good

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        return None
