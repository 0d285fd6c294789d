"""Rows of a prompt lookup that runs on the device: the text is the history column, there is no other state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...core.batch import Draft, RoundBatch, Window
from ...kernels.lookup import LookupRule, Texts, look_up
from ..base import DraftRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...cache.tables import RowTables
    from ...core.row import Row


class DeviceLookupRows(DraftRows):
    """Looks the rows' newest tokens up in ``tables.history``; proposes what the host's lookup proposes."""

    on_device = True
    lags = True

    def __init__(self, tables: RowTables, rule: LookupRule) -> None:
        self._tables = tables
        self._rule = rule

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        return None

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        texts = Texts(self._tables.history, self._tables.length)
        return Draft(*look_up(texts, self._rule, index, depths, depth))

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        return None

    def draft(self, batch: RoundBatch) -> Draft:
        depths = torch.tensor(list(batch.depths), dtype=torch.int64, device=self._tables.device)
        return self.draft_device(batch.indices, depths, max(batch.depths, default=0))

    def preview(self, batch: RoundBatch) -> Draft | None:
        return self.draft(batch)

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        return None
