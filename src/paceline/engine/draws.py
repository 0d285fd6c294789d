"""Drawing for rows of the tables: each position with its row's own parameters at its own step (spec 7.10, 13.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..core.row import Row
from ..draft.policy import draft_options
from ..sampling.draw import draw, draw_indexed, draw_subset
from ..sampling.params import DrawParams, FilterChain, chains_of, filter_chain
from ..sampling.processors.chain import RowProcessor, apply_processors
from .grammars import RoundMasks
from .scores import WindowScores, wants_raw

if TYPE_CHECKING:
    from ..cache.tables import RowTables


@dataclass(frozen=True)
class WindowDraws:
    """``tokens`` [N] int64, ``bad`` [N] bool (logits not finite), and the ``scores`` they were drawn from."""

    tokens: torch.Tensor
    bad: torch.Tensor
    scores: WindowScores


@dataclass(frozen=True)
class Flavor:
    """What the host knows of all rows of a round; it spares the device what no row needs."""

    all_greedy: bool
    any_filter: bool

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Flavor:
        return cls(all(row.request.params.greedy for row in rows), any(_filters(row) for row in rows))


class RowSampler:
    """Draws for target and drafter from the columns of the row tables. ``flavor``: of the device round being built."""

    def __init__(
        self,
        tables: RowTables,
        draft_temperature: float | None = None,
        draft_filter: bool = True,
        coupling: str = "gumbel",
    ) -> None:
        self._tables = tables
        self._coupling = coupling
        self._chains: dict[int, FilterChain] = {}
        self._draft_temperature = draft_temperature
        self._draft_filter = draft_filter
        self._processors: dict[int, RowProcessor] = {}
        self.flavor = Flavor(all_greedy=False, any_filter=True)

    def on_device(self, rows: Sequence[Row]) -> bool:
        """Whether the columns say all there is about the rows' draws: no processors, no rarer filters."""
        return not any(row.index in self._processors or row.index in self._chains for row in rows)

    def draw_device(self, logits: torch.Tensor, index: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws [B, W] int64 and bad [B, W] bool over flat windows of ``width``, ``logits`` [B * W, V], for the rows
        ``index`` [B]: place p of a window at ``step + p``. Reads columns only."""
        tokens, bad = draw_indexed(logits, self._columns_of_all(), index, width=width)
        return tokens.view(-1, width), bad.view(-1, width)

    def sample_device(
        self, logits: torch.Tensor, index: torch.Tensor, offset: int, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The drafter's draw port on the device: rows ``index`` [B] with their draft parameters at ``step + offset``.
        Returns full ids [B]."""
        return draw_indexed(logits, self._draft_view(self._columns_of_all()), index, offset=offset, ids=ids).tokens

    def _columns_of_all(self) -> DrawParams:
        """The columns of all rows as they are: draws take from them what they need."""
        columns = self._tables
        return DrawParams(
            temperature=columns.temperature,
            top_k=columns.top_k,
            top_p=columns.top_p,
            min_p=columns.min_p,
            seed=columns.seed,
            step=columns.step,
            all_greedy=self.flavor.all_greedy,
            any_filter=self.flavor.any_filter,
            coupling=self._coupling,
        )

    def _draft_view(self, params: DrawParams) -> DrawParams:
        """The columns as drafts use them (spec 13.8): another temperature, or no filters, for rows that sample."""
        if self._draft_temperature is not None:
            warm = torch.full_like(params.temperature, self._draft_temperature)
            params = replace(params, temperature=torch.where(params.greedy, params.temperature, warm))
        return params if self._draft_filter else replace(params, any_filter=False)

    def open_row(self, row: Row) -> None:
        """A row got its index: keep what its processors and rarer filters need. Its output so far is history."""
        chain = filter_chain(row.request.params, row.request.xtc_spared)
        if chain is not None:
            self._chains[row.index] = chain
        settings = row.request.processors
        if settings is not None:
            processor = RowProcessor(settings, row.request.prompt_ids)
            processor.observe(row.tokens[row.prompt_tokens :])
            self._processors[row.index] = processor

    def close_row(self, row: Row) -> None:
        """Forget the row. Idempotent."""
        self._chains.pop(row.index, None)
        self._processors.pop(row.index, None)

    def observe(self, row: Row, draws: Sequence[int]) -> None:
        """Used draws of a row that goes on; rejected proposals never come here (spec 7.12)."""
        processor = self._processors.get(row.index)
        if processor is not None:
            processor.observe(draws)

    def draw_window(
        self,
        logits: torch.Tensor,
        rows: Sequence[Row],
        proposals: Sequence[Sequence[int]],
        masks: RoundMasks | None = None,
    ) -> WindowDraws:
        """Draws over flat windows: row i owns ``len(proposals[i]) + 1`` positions of ``logits`` [N, V].

        Position p is drawn at ``step + p``, with the history that its proposals before p would make. ``logits`` may be
        changed.
        """
        raw = logits
        if (self._processors or masks is not None) and wants_raw(rows):
            raw = logits.clone()
        if self._processors:
            apply_processors(logits, [self._processors.get(row.index) for row in rows], proposals)
        if masks is not None:
            masks.apply(logits)
        query_lens = [len(proposal) + 1 for proposal in proposals]
        owners = [row.index for row, n in zip(rows, query_lens, strict=True) for _ in range(n)]
        offsets = [p for n in query_lens for p in range(n)]
        columns = self._tables
        index = torch.tensor(owners, dtype=torch.int64, device=logits.device)
        params = DrawParams(
            temperature=columns.temperature[index],
            top_k=columns.top_k[index],
            top_p=columns.top_p[index],
            min_p=columns.min_p[index],
            seed=columns.seed[index],
            step=columns.step[index] + torch.tensor(offsets, dtype=torch.int64, device=logits.device),
            all_greedy=all(row.request.params.greedy for row in rows),
            any_filter=any(_filters(row) for row in rows),
            chains=chains_of([self._chains.get(i) for i in owners]) if self._chains else None,
            coupling=self._coupling,
        )
        tokens, bad = draw(logits, params)
        return WindowDraws(tokens, bad, WindowScores(raw, logits))

    def sample(
        self, logits: torch.Tensor, rows: Sequence[Row], offset: int, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The drafter's draw port: row i with its draft parameters at ``row.step + offset``. Returns full ids [B]."""
        options = [
            draft_options(row.request.params, False, temperature=self._draft_temperature, filters=self._draft_filter)
            for row in rows
        ]
        device = logits.device
        params = DrawParams(
            temperature=torch.tensor([o.temperature for o in options], dtype=torch.float32, device=device),
            top_k=torch.tensor([max(0, o.top_k) for o in options], dtype=torch.int64, device=device),
            top_p=torch.tensor([o.top_p for o in options], dtype=torch.float32, device=device),
            min_p=torch.tensor([o.min_p for o in options], dtype=torch.float32, device=device),
            seed=self._tables.seed[torch.tensor([row.index for row in rows], dtype=torch.int64, device=device)],
            step=torch.tensor([row.step + offset for row in rows], dtype=torch.int64, device=device),
            all_greedy=all(o.greedy for o in options),
            any_filter=any(o.top_k > 0 or o.top_p < 1.0 or o.min_p > 0.0 for o in options),
            chains=chains_of([filter_chain(o, row.request.xtc_spared) for o, row in zip(options, rows, strict=True)]),
            coupling=self._coupling,
        )
        if ids is None:
            return draw(logits, params).tokens
        return draw_subset(logits, ids, params)


def _filters(row: Row) -> bool:
    params = row.request.params
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)
