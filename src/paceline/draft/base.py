"""The contract of drafters (spec 15.9, 15.10) and a base class for those that only look at tokens.

A provider is a factory; its rows object holds the state of all rows of one group. The engine never asks a provider's
name, only its declared capabilities. Nothing a drafter does can change the tokens of a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from ..core.batch import Draft, ForwardBatch, RoundBatch, Window
from ..core.errors import DraftError
from ..core.transaction import NoChange, StateChange

if TYPE_CHECKING:
    import torch

    from ..cache.groups import BlockGroupSpec
    from ..cache.tables import RowTables
    from ..core.row import Row


@dataclass(frozen=True)
class TargetView:
    """What a drafter may know of the target: sizes and identity. ``tokenizer`` is ``None`` when ids only are used.

    ``tables``: the row tables, once they exist; a drafter with KV of its own finds its block groups there.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    eos_ids: tuple[int, ...]
    device: str
    dtype: str
    tokenizer: Any | None = None
    tables: RowTables | None = None


class DrawPort(Protocol):
    """How a drafter draws (spec 13.9): each row with its own draft parameters, at step ``step + offset``.

    ``logits`` [B, V] float; with listed ids [B, N] and ``ids`` [N] int64. Returns full-vocabulary ids [B] int64.
    """

    def sample(
        self, logits: torch.Tensor, rows: Sequence[Row], offset: int, ids: torch.Tensor | None = None
    ) -> torch.Tensor: ...

    def sample_device(
        self, logits: torch.Tensor, index: torch.Tensor, offset: int, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As :meth:`sample` for the rows ``index`` [B] int64, from the row tables' columns alone: no host value."""
        ...


class Constraints(Protocol):
    """What a row's grammar forces next, at most ``max_tokens`` ids; empty if nothing is forced."""

    def forced_tokens(self, row: Row, max_tokens: int) -> list[int]: ...


class DraftRows(ABC):
    """A drafter's state for the rows of one group. Methods are called on the engine thread, in this order per row:

    ``open_row``, ``prefill`` per prompt chunk, ``prepare_join``, then per round ``draft`` and ``commit`` (or
    ``consume`` when the window was proposed by somebody else), at the end ``close_row``.

    ``taps``: target layers whose hidden states ``prefill`` and ``commit`` receive. ``records``: how many rounds may be
    undone (1 or 2). ``shifted``: spec 15.14. ``on_device``: it drafts and commits by :meth:`draft_device` and
    :meth:`commit_device`, without a value from the host (spec 10.2). ``lags``: it goes by ``row.tokens`` alone, so the
    engine need not tell it of rounds in which it had nothing to propose.
    """

    taps: tuple[int, ...] = ()
    namespace: str = ""
    records: int = 2
    shifted: bool = False
    on_device: bool = False
    lags: bool = False

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        """A row enters prefill; ``checkpoint`` is what ``capture`` returned for the reused prefix, if any."""

    def close_row(self, row: Row) -> None:
        """The row is gone: drop all state of it. Called exactly once for each opened row."""

    def prepare_join(self, row: Row) -> StateChange:
        """Prepare the row's step from prefill to decoding (spec 5.2)."""
        return NoChange()

    def prefill(self, rows: Sequence[Row], batch: ForwardBatch, context: torch.Tensor) -> None:
        """Consume the prompt chunk the target just processed. ``context`` [N, taps * H], or [N, H] without taps."""

    @abstractmethod
    def draft(self, batch: RoundBatch) -> Draft:
        """Propose at most ``batch.depths[i]`` tokens for row i; the returned lengths are authoritative."""

    def preview(self, batch: RoundBatch) -> Draft | None:
        """What ``draft`` would propose, without changing any state; ``None`` if that is not possible."""
        return None

    def commit(self, batch: RoundBatch, window: Window, accepted: Sequence[int]) -> None:
        """Row i's window kept its pending token and its first ``accepted[i]`` proposals. Tokens that follow the kept
        inputs are in ``row.tokens`` (its last entry is the next pending token)."""

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        """As ``commit`` for windows that others proposed: row i keeps the first ``counts[i]`` inputs of its window."""

    def before_device_round(self, rows: Sequence[Row], depths: Sequence[int], width: int) -> None:
        """A device round of windows of ``width`` tokens is about to be launched for ``rows``, which draft ``depths``.
        Called on the host each time, also where the round itself replays a graph: what a drafter queues here runs
        before the round."""

    def draft_device(self, index: torch.Tensor, depths: torch.Tensor, depth: int) -> Draft:
        """Device form of :meth:`draft` for the rows ``index`` [B] int64: at most ``depths`` [B] int64 proposals each,
        in tensors of ``depth`` columns. Reads the row tables' columns only; sizes depend on B and ``depth`` alone.
        """
        raise DraftError("this drafter does not draft on the device")

    def commit_device(self, index: torch.Tensor, window: Window, accepted: torch.Tensor) -> None:
        """Device form of :meth:`commit`: row ``index[b]`` kept its pending token and ``accepted[b]`` proposals of its
        window, a rectangle of ``window.batch.width`` tokens. The columns have advanced already. Rows that are not live
        any more must come to no harm."""
        raise DraftError("this drafter does not commit on the device")

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Process everything deferred (spec 15.11); coverage then equals the target's."""

    def capture(self, row: Row, length: int) -> Any | None:
        """Attachment for a checkpoint at ``length`` inputs of a caught-up row."""
        return None

    def close(self) -> None:
        """Release everything. The rows object is not used again."""


class DraftProvider(ABC):
    """Makes :class:`DraftRows`. ``id`` names the drafter in reports and in the group key.

    ``external_tokens``: ``consume`` is implemented, so spans may propose for its rows. ``free``: proposes without a
    model forward, so its proposals cost nothing and bound the depth (spec 6.3). ``weight_bytes``: memory it holds.
    """

    id: str
    external_tokens: bool = False
    free: bool = False
    weight_bytes: int = 0

    def kv_groups(self, view: TargetView) -> tuple[BlockGroupSpec, ...]:
        """Block groups for the drafter's own KV. Their layers are numbered from ``view.num_layers`` on and hold the
        target's KV dtype; logical blocks are those of the target, so a row's lengths and prefixes align."""
        return ()

    def target_taps(self, view: TargetView) -> tuple[int, ...]:
        """Target layers whose outputs the drafter needs, in the order it wants them."""
        return ()

    @abstractmethod
    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows: ...

    def close(self) -> None:
        """Release weights. Called once by whoever loaded the provider."""


class TextView(Sequence[int]):
    """A list that can be read but not changed: a request's own text in a drafter's hands. Slices are copies."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self._tokens[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)


class TokenDrafter(DraftProvider):
    """Base for drafters that need only the text: implement :meth:`propose`, optionally with per-row state.

    ``new_state`` is called when a row opens, ``propose`` once per round with the row's whole text so far.
    """

    external_tokens = True
    free = True

    def new_state(self, prompt: Sequence[int]) -> Any:
        """State kept for one row; handed back to ``propose``."""
        return None

    @abstractmethod
    def propose(self, state: Any, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most ``max_tokens`` (>= 1) likely next tokens after ``tokens`` (prompt + output, newest last)."""

    def matched(self, state: Any) -> int:
        """The match that the newest proposals of this state rest on, as ``Draft.matches`` counts it (0 = not known)."""
        return 0

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        return _TokenRows(self)


class _TokenRows(DraftRows):
    """Rows of a :class:`TokenDrafter`: one state object per row, no tensors."""

    lags = True

    def __init__(self, drafter: TokenDrafter) -> None:
        self._drafter = drafter
        self._states: dict[int, Any] = {}

    def open_row(self, row: Row, checkpoint: Any | None) -> None:
        self._states[row.index] = self._drafter.new_state(row.request.prompt_ids)

    def close_row(self, row: Row) -> None:
        self._states.pop(row.index, None)

    def draft(self, batch: RoundBatch) -> Draft:
        lists: list[list[int]] = []
        matches: list[int] = []
        for row, depth in zip(batch.rows, batch.depths, strict=True):
            lists.append(self._propose(row, depth) if depth > 0 else [])
            matches.append(self._drafter.matched(self._states[row.index]) if lists[-1] else 0)
        return Draft.from_lists(lists, matches)

    def _propose(self, row: Row, depth: int) -> list[int]:
        """One row's proposals; an error names the row, so that it costs no other."""
        try:
            return list(self._drafter.propose(self._states[row.index], TextView(row.tokens), depth))[:depth]
        except Exception as error:
            error.row = row  # type: ignore[attr-defined]
            raise

    def preview(self, batch: RoundBatch) -> Draft | None:
        return self.draft(batch)

    def consume(self, batch: RoundBatch, window: Window, counts: Sequence[int]) -> None:
        return None


class NullDrafter(TokenDrafter):
    """Proposes nothing: the drafter of ``spec_method="none"``."""

    id = "none"

    def propose(self, state: Any, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return ()
