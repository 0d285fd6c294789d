"""What the drafter tests share: a target's facts, ports that nobody should call, rows that hold only text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.batch import RoundBatch
from paceline.core.request import Request, SamplingParams
from paceline.core.row import Row
from paceline.draft.base import TargetView

VIEW = TargetView(
    vocab_size=256, hidden_size=8, num_layers=2, max_model_len=4096, eos_ids=(0,), device="cpu", dtype="float32"
)


class NoPort:
    """Stands for the draw port and the grammar of drafters that need neither."""

    def sample(self, logits, rows, offset, ids=None):
        raise AssertionError("a drafter of tokens draws nothing")

    def forced_tokens(self, row, max_tokens):
        return []


def row_of(
    prompt: Sequence[int],
    output: Sequence[int] = (),
    index: int = 0,
    request_id: str = "r",
    namespace: str | None = None,
) -> Row:
    """A row whose text is ``prompt + output``."""
    request = Request(request_id, tuple(prompt), SamplingParams(), 1000, (0,), 0, 64, namespace=namespace)
    return Row(request, index, [*prompt, *output])


def batch_of(rows: Sequence[Row], depths: Sequence[int]) -> RoundBatch:
    return RoundBatch(rows, torch.tensor([row.index for row in rows], dtype=torch.int64), depths)
