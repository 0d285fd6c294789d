"""Binding a target and a drafter: options of a request to the group it decodes in (spec 2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import ConfigError, DraftError
from ..core.ports import Gate, Host
from ..core.request import Request
from ..core.row import Row
from ..draft.base import DraftProvider, DraftRows, NullDrafter, TargetView
from .drafting import GuardedDrafter
from .group import GroupTools, SpeculativeGroup
from .planning import Policy
from .spans import RowSpans


@dataclass(frozen=True)
class GroupRequest:
    """Which group a request decodes in. Two requests may share a group iff their ``key`` is equal (spec 2.7)."""

    key: str
    options: Request
    open: Callable[[Host], SpeculativeGroup]


@dataclass(frozen=True)
class GroupBinding:
    """Everything a group is opened with, frozen at bind time."""

    tools: GroupTools
    provider: DraftProvider
    depth: int
    view: TargetView
    make_gate: Callable[[], Gate] | None = None
    fill_span: int = 32


class _NoConstraints:
    """Constraint port while no grammar is attached: nothing is ever forced."""

    def forced_tokens(self, row: Row, max_tokens: int) -> list[int]:
        return []


def group_key(provider_id: str, depth: int, adaptive: bool) -> str:
    """Stable serialisation of what separates groups; sampling, seeds and limits are columns, not part of it."""
    return json.dumps(["speculative", provider_id, depth, adaptive])


class BoundGroups:
    """From request to :class:`GroupRequest`. ``key``: of the groups it opens."""

    def __init__(self, binding: GroupBinding, taps: tuple[int, ...]) -> None:
        depth = 0 if isinstance(binding.provider, NullDrafter) else binding.depth
        self.key = group_key(binding.provider.id, depth, binding.make_gate is not None)
        self._binding = binding
        self._taps = taps

    def __call__(self, request: Request) -> GroupRequest:
        return GroupRequest(self.key, request, self.open)

    def open(self, host: Host) -> SpeculativeGroup:
        """A group without rows."""
        return _open(self._binding, self._taps, self.key, host)


def bind_speculative_group(binding: GroupBinding) -> BoundGroups | None:
    """Who opens groups for requests, or ``None`` if the target cannot give the drafter's taps.

    Raises :class:`DraftError` if the provider's rows contradict its declarations.
    """
    provider = binding.provider
    if binding.depth < 0:
        raise ConfigError("spec_tokens", f"must be at least 0, not {binding.depth}")
    taps = tuple(provider.target_taps(binding.view))
    if taps and not binding.tools.parts.target.supports_taps(taps):
        return None
    _open_rows(binding, taps).close()  # a drafter that contradicts itself is a start-up error, not a failed request
    return BoundGroups(binding, taps)


def _open(binding: GroupBinding, taps: tuple[int, ...], key: str, host: Host) -> SpeculativeGroup:
    drafter = _open_guarded(binding, taps)
    gate = binding.make_gate() if binding.make_gate is not None else None
    provider = binding.provider
    policy = Policy(gate, RowSpans(binding.fill_span), provider.free, provider.external_tokens)
    group = SpeculativeGroup(binding.tools, host, drafter, policy)
    group.key = key
    return group


def _open_guarded(binding: GroupBinding, taps: tuple[int, ...]) -> GuardedDrafter:
    """The drafter's rows; one that cannot be opened any more costs its proposals, not the requests (spec 16.1)."""
    try:
        rows = _open_rows(binding, taps)
    except Exception as error:
        null = NullDrafter().open(binding.view, binding.tools.sampler, _NoConstraints())
        guarded = GuardedDrafter(null, binding.view.vocab_size, binding.tools.stats)
        guarded.fail(error, ())
        return guarded
    return GuardedDrafter(rows, binding.view.vocab_size, binding.tools.stats)


def _open_rows(binding: GroupBinding, taps: tuple[int, ...]) -> DraftRows:
    rows = binding.provider.open(binding.view, binding.tools.sampler, _NoConstraints())
    if tuple(rows.taps) != taps:
        rows.close()
        raise DraftError(f"drafter {binding.provider.id!r} was opened with taps {tuple(rows.taps)} but declared {taps}")
    return rows
