"""The drafter kinds there are, how one is recognised and loaded (spec 15.2 to 15.8). Imports no torch.

The names of kinds appear in this package only; the engine sees providers and what they declare.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ConfigError, DraftError
from .artifact import DraftArtifact, LoadedDraft, LoadRequest, NativeDraft
from .base import DraftProvider

AUTO, OFF = "auto", "none"
_AUTO_ORDER = ("suffix", "ngram")


@dataclass(frozen=True)
class DraftKind:
    """One kind of drafter that can be loaded by name or found in a directory.

    ``load`` releases what it opened if it fails. ``artifact``: needs a directory; a kind without one is chosen by name
    only. ``detect``: whether a directory holds this kind; ``fallback`` kinds are asked after all others.
    ``bundled_companion``: sub-directory of a target's directory where this kind may lie. ``resolve``: the kind that a
    directory really holds when this one is named for it.
    """

    kind: str
    load: Callable[[LoadRequest], LoadedDraft]
    artifact: bool = True
    bundled_companion: str | None = None
    detect: Callable[[DraftArtifact], bool] | None = None
    fallback: bool = False
    resolve: Callable[[DraftArtifact], str] | None = None


@dataclass(frozen=True)
class NativeKind:
    """A kind that lives inside a target graph: ``make(graph)`` gives its provider."""

    kind: str
    make: Callable[[Any], DraftProvider]


class DraftRegistry:
    """Kinds in registration order, most specific first."""

    def __init__(self) -> None:
        self._kinds: dict[str, DraftKind] = {}
        self._natives: dict[str, NativeKind] = {}

    def register(self, kind: DraftKind) -> DraftRegistry:
        """Add a kind; returns the registry. A name that is taken raises :class:`DraftError`."""
        _refuse_duplicate(kind.kind, self._kinds)
        self._kinds[kind.kind] = kind
        return self

    def register_native(self, kind: NativeKind) -> DraftRegistry:
        """Add a kind that target graphs may declare; returns the registry."""
        _refuse_duplicate(kind.kind, self._natives)
        self._natives[kind.kind] = kind
        return self

    def kinds(self) -> tuple[str, ...]:
        """Names in registration order."""
        return tuple(self._kinds)

    def get(self, name: str) -> DraftKind:
        """The kind called ``name``; :class:`DraftError` listing the kinds if there is none."""
        if name not in self._kinds:
            raise DraftError(f"unknown drafter kind {name!r}; known are {_listed(self._kinds)}")
        return self._kinds[name]

    def detect(self, directory: str | Path) -> str:
        """Name of the first kind that recognises ``directory``, fallback kinds last. Loads no weights."""
        artifact = DraftArtifact(directory)
        for kind in sorted(self._kinds.values(), key=lambda kind: kind.fallback):
            if kind.artifact and kind.detect is not None and kind.detect(artifact):
                return kind.kind
        raise DraftError(f"{directory}: holds no drafter of a known kind ({_listed(self._kinds)})")

    def companion(self, target_directory: str | Path) -> tuple[str, Path] | None:
        """Kind and directory of the first drafter bundled with a target, if there is one."""
        for kind in self._kinds.values():
            if kind.bundled_companion is None:
                continue
            directory = Path(target_directory) / kind.bundled_companion
            if directory.is_dir() and (kind.detect is None or kind.detect(DraftArtifact(directory))):
                return kind.kind, directory
        return None

    def load(self, name: str, request: LoadRequest) -> LoadedDraft:
        """Load ``name``, or what ``request.directory`` really holds if the kind says so; the result tells which."""
        kind = self.get(name)
        if kind.artifact and request.directory is None:
            raise DraftError(f"drafter kind {name!r} needs weights: set spec_model to their directory")
        if not kind.artifact and request.directory is not None:
            raise DraftError(f"drafter kind {name!r} takes no weights: leave spec_model out, not {request.directory}")
        if kind.resolve is not None and request.directory is not None:
            kind = self.get(kind.resolve(DraftArtifact(request.directory)))
        return replace(kind.load(request), kind=kind.kind)

    def native(self, graph: Any) -> LoadedDraft | None:
        """The drafter inside ``graph``, if its ``native_draft`` declares one."""
        declared: NativeDraft | None = getattr(graph, "native_draft", None)
        if declared is None:
            return None
        if declared.kind not in self._natives:
            known = _listed(self._natives)
            raise DraftError(f"the target declares a native drafter of kind {declared.kind!r}; known are {known}")
        return LoadedDraft(self._natives[declared.kind].make(graph), declared.num_draft_tokens, declared.kind)


class MethodChoice(NamedTuple):
    """A concrete kind, or ``"none"``, and why it was chosen."""

    method: str
    reason: str


def resolve_method(method: str, registry: DraftRegistry, directory: str | Path | None = None) -> MethodChoice:
    """What ``spec_method`` means here: ``auto`` looks into ``directory`` if given, else drafts from the text alone."""
    if method == OFF:
        return MethodChoice(OFF, "spec_method is none")
    if method != AUTO:
        if method not in registry.kinds():
            known = f"{AUTO}, {OFF}, {_listed(registry.kinds())}"
            raise ConfigError("spec_method", f"unknown drafter kind {method!r}; known are {known}")
        return MethodChoice(method, f"spec_method is {method}")
    if directory is not None:
        return MethodChoice(registry.detect(directory), f"found in {directory}")
    for name in _AUTO_ORDER:
        if name in registry.kinds():
            return MethodChoice(name, "no drafter weights were given, and this kind needs none")
    return MethodChoice(OFF, "no drafter weights were given, and no kind without weights is registered")


def default_registry() -> DraftRegistry:
    """A new registry of the kinds that ship with paceline, most specific first. Their modules load when needed."""
    return (
        DraftRegistry()
        .register(DraftKind("suffix", _lazy("suffix"), artifact=False))
        .register(DraftKind("ngram", _lazy("ngram"), artifact=False))
        .register(DraftKind("draft_model", _lazy("draft_model"), detect=DraftArtifact.holds_model, fallback=True))
    )


def _lazy(module: str) -> Callable[[LoadRequest], LoadedDraft]:
    """The function ``load`` of a module in ``kinds``, imported when it is called."""

    def load(request: LoadRequest) -> LoadedDraft:
        loaded: LoadedDraft = importlib.import_module(f".kinds.{module}", __package__).load(request)
        return loaded

    return load


def _refuse_duplicate(name: str, known: dict[str, Any]) -> None:
    if name in known:
        raise DraftError(f"drafter kind {name!r} is registered twice")


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
