"""One row's place in a grammar compiled by llguidance: masks, steps, and coming back. Knows the library's matcher by
its methods only; adds the treatment of EOS, exact rollback and recovery from the library's limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import RowFailed
from .bits import mask_words, packed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Vocabulary:
    """What all handles of one tokenizer share: sizes, EOS ids, how many handles are open."""

    def __init__(self, size: int, eos_ids: Iterable[int], special_ids: Iterable[int] = ()) -> None:
        self.size = size
        self.words = mask_words(size)
        self.eos_ids = frozenset(token for token in eos_ids if 0 <= token < size)
        self.eos = packed(self.eos_ids, size)
        self.content = packed(range(size), size) & ~self.eos & ~packed(special_ids, size)
        #: After the end only EOS may follow. Without EOS ids that draw is unused, but it must be one.
        self.after_end = _frozen(self.eos if self.eos_ids else packed(range(size), size))
        self._open = 0
        self._lock = threading.Lock()

    @property
    def open_handles(self) -> int:
        return self._open

    def count(self, change: int) -> None:
        with self._lock:
            self._open += change


class LlguidanceMatcher:
    """A :class:`~.matcher.Matcher`. ``fresh`` makes a matcher of the library at the start of the text.

    EOS is kept outside the library's matcher: its ids are permitted iff the text may end, whatever text they would
    spell. A library matcher that hit one of its limits is replaced by a fresh one that is led to the same place, for
    limits count all work of a matcher, also that for drafts, which must not decide whether a row fails.
    """

    def __init__(self, fresh: Callable[[], Any], vocabulary: Vocabulary) -> None:
        self._fresh = fresh
        self._vocabulary = vocabulary
        self._matcher: Any = fresh()
        self._history: list[int] = []
        self._ends = 0  # EOS ids at the end of the accepted ids
        self._mask: NDArray[np.int32] | None = None
        vocabulary.count(+1)

    @property
    def words(self) -> int:
        return self._vocabulary.words

    @property
    def is_terminated(self) -> bool:
        if self._ends or self._matcher.is_stopped():
            return True
        return bool(self._matcher.is_accepting()) and not self._content(self._next_mask()).any()

    def mask(self) -> NDArray[np.int32]:
        return self._vocabulary.after_end if self.is_terminated else self._next_mask()

    def accept(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            if not (self._ends or self._matcher.is_accepting()):
                return False
            self._ends += 1
            return True
        if not 0 <= token < self._vocabulary.size or self.is_terminated or not self._consume(token):
            return False
        self._history.append(token)
        self._mask = None
        return True

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self._ends + len(self._history):
            raise ValueError(f"cannot take back {count} of {self._ends + len(self._history)} accepted tokens")
        ends = min(count, self._ends)
        self._ends -= ends
        count -= ends
        if count:
            self._mask = None
            del self._history[len(self._history) - count :]
            if not self._matcher.rollback(count):
                self._rebuild()

    def forced_tokens(self, max_tokens: int) -> list[int]:
        if max_tokens < 1 or self.is_terminated:
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()[:max_tokens]
        for place, token in enumerate(forced):
            if token in self._vocabulary.eos_ids or token >= self._vocabulary.size:
                forced = forced[:place]
                break
        return forced[: self._matcher.validate_tokens(forced)] if forced else []

    def close(self) -> None:
        if self._matcher is not None:
            self._matcher = self._mask = None
            self._vocabulary.count(-1)

    def _content(self, mask: NDArray[np.int32]) -> NDArray[np.uint32]:
        return mask.view(np.uint32) & self._vocabulary.content

    def _next_mask(self) -> NDArray[np.int32]:
        """The mask before an end is considered, computed once per place."""
        if self._mask is None:
            self._mask = self._compute_mask()
        return self._mask

    def _compute_mask(self) -> NDArray[np.int32]:
        raw = self._guarded(lambda matcher: matcher.compute_bitmask())
        mask = np.frombuffer(raw, dtype=np.uint32)[: self._vocabulary.words] & self._vocabulary.content
        if self._matcher.is_accepting():
            mask |= self._vocabulary.eos
        elif not mask.any():
            raise RowFailed("the grammar cannot go on here with any token of the vocabulary")
        return _frozen(mask)

    def _consume(self, token: int) -> bool:
        return bool(self._guarded(lambda matcher: matcher.try_consume_tokens([token])) == 1)

    def _guarded(self, call: Callable[[Any], Any]) -> Any:
        """A call of the library's matcher, made again on a fresh one if the first hit a limit."""
        result = call(self._matcher)
        if self._matcher.is_error():
            self._rebuild()
            result = call(self._matcher)
            if self._matcher.is_error():
                failure = self._failure()
                self._rebuild()
                raise failure
        return result

    def _rebuild(self) -> None:
        """Start afresh and go to the same place. Raises :class:`RowFailed` if that is beyond the limits."""
        self._matcher = self._fresh()
        self._mask = None
        if self._history:
            self._matcher.consume_tokens(self._history)
        if self._matcher.is_error():
            raise self._failure()

    def _failure(self) -> RowFailed:
        reason = str(self._matcher.get_error()).split("<state>")[0].strip()[:200]
        return RowFailed(f"the grammar became too complex: {reason}")


def _frozen(words: NDArray[np.uint32]) -> NDArray[np.int32]:
    """The same bits as a read-only int32 mask."""
    mask = words.view(np.int32)
    mask.setflags(write=False)
    return mask
