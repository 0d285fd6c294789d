"""Shadow probes: compares what a drafter would have proposed with the draws that follow (spec 11.8 to 11.10).

Pure bookkeeping on token ids: runs no model, knows no clock and no gate. A probe costs no verify window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.ports import Evidence


@dataclass(slots=True)
class _Probe:
    """One row's proposals (``None`` = still on the device), the draws that wait for them, and the matches so far."""

    match: int
    proposals: Sequence[int] | None
    draws: list[int | None] = field(default_factory=list)
    seen: int = 0


class ShadowProbes:
    """Probes of the rows of one group, at most one per row at a time.

    ``start`` opens probes, ``delivered`` compares each row's draws in order, ``settle`` closes probes early because
    another kind of round is about to run, ``drop`` forgets a row that is gone. A row whose probe has settled may be
    probed again at once.
    """

    def __init__(self) -> None:
        self._probes: dict[int, _Probe] = {}

    @property
    def outstanding(self) -> bool:
        """Whether any row is being probed."""
        return bool(self._probes)

    def has(self, index: int) -> bool:
        """Whether this row is being probed."""
        return index in self._probes

    def start(
        self,
        indices: Sequence[int],
        proposals: Sequence[Sequence[int]] | None = None,
        matches: Sequence[int] | None = None,
    ) -> None:
        """Probe these rows with what would follow their newest known token.

        ``proposals``: one list per row, or ``None`` if they are still on the device: then draws are kept until
        :meth:`arrive`. Rows without proposals are left out, and so are rows whose probe is still open.
        """
        for place, index in enumerate(indices):
            own = None if proposals is None else tuple(proposals[place])
            if index not in self._probes and (own is None or own):
                self._probes[index] = _Probe(0 if matches is None else matches[place], own)

    def arrive(self, proposals: Mapping[int, Sequence[int]]) -> list[Evidence]:
        """Proposals of rows by index that were read now; what the kept draws settle. Rows that are gone are ignored."""
        settled = []
        for index, tokens in proposals.items():
            probe = self._probes.get(index)
            if probe is None or probe.proposals is not None:
                continue
            probe.proposals = tuple(tokens)
            if not tokens:
                del self._probes[index]
                continue
            draws, probe.draws = probe.draws, []
            settled += self._compare(index, draws)
        return settled

    def delivered(self, index: int, emitted: Sequence[int], saw_eos: bool = False) -> Evidence | None:
        """A row's draws of one round, in order; the evidence if they settle its probe. An EOS is a miss."""
        probe = self._probes.get(index)
        if probe is None:
            return None
        draws: list[int | None] = [*emitted, None] if saw_eos else list(emitted)
        if probe.proposals is None:
            probe.draws += draws
            return None
        return next(iter(self._compare(index, draws)), None)

    def settle(self, indices: Iterable[int] | None = None) -> list[Evidence]:
        """Close the probes of these rows (of all without an argument): what has matched so far counts, without a miss.

        Proposals that never arrived show nothing.
        """
        closed = [index for index in (list(self._probes) if indices is None else indices) if index in self._probes]
        probes = [(index, self._probes.pop(index)) for index in closed]
        return [Evidence(index, probe.seen, probe.seen, probe.match) for index, probe in probes if probe.seen]

    def drop(self, index: int) -> None:
        """The row is gone: forget its probe. Idempotent."""
        self._probes.pop(index, None)

    def _compare(self, index: int, draws: Sequence[int | None]) -> list[Evidence]:
        """Walk draws against the row's proposals; at most one entry."""
        probe = self._probes[index]
        assert probe.proposals is not None
        for draw in draws:
            right = draw == probe.proposals[probe.seen]
            probe.seen += right
            if not right or probe.seen == len(probe.proposals):
                del self._probes[index]
                return [Evidence(index, len(probe.proposals), probe.seen, probe.match)]
        return []
