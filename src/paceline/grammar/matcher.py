"""The contract between rows and grammars (spec 13.14): a compiled grammar opens handles, a handle follows one row's
text. Knows no backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .spec import GrammarSpec

    #: Permissions over the vocabulary, [ceil(V / 32)] int32: bit ``id % 32`` of word ``id // 32`` permits ``id``.
    Bitmask = NDArray[np.int32]


class Matcher(Protocol):
    """A row's place in its grammar. Used by one thread at a time; owned by the row, closed exactly once by it.

    Methods raise :class:`RowFailed` when the grammar outgrows the backend's limits at this point of the text; the
    handle stays usable for ``rollback`` and ``close``.
    """

    @property
    def words(self) -> int:
        """Length of a mask, ceil(V / 32)."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether the grammar is complete: its last content token or an EOS was accepted. Only EOS may follow."""
        ...

    def mask(self) -> Bitmask:
        """Ids permitted next, read-only. EOS ids are among them iff the text may end here. Changes nothing."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a permitted id. False, and nothing changes, if the text cannot go on with it.

        Where text is forced the mask permits one spelling of it; others are no draws, but may be taken here.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted ids; any count up to all of them."""
        ...

    def forced_tokens(self, max_tokens: int) -> list[int]:
        """At most ``max_tokens`` ids that spell the text forced from here, each permitted after the ones before it.

        Forced is the text, not its spelling: the target may still draw other ids for it. Changes nothing.
        """
        ...

    def close(self) -> None:
        """Give the handle back. Idempotent; nothing else may be called afterwards."""
        ...


class Grammar(Protocol):
    """A compiled grammar. Shared by threads and requests; never changes."""

    def open(self) -> Matcher:
        """A handle at the start of the text; cheap compared with compiling."""
        ...


class GrammarBackend(Protocol):
    """Compiles grammars for one tokenizer. ``compile`` runs on any thread, several at a time."""

    @property
    def open_handles(self) -> int:
        """Handles that were opened and not closed."""
        ...

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises :class:`RequestError` with the reason if the spec is broken or asks for what is not supported."""
        ...
