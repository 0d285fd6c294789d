"""What a drafter's directory says about itself, and the records of loading one. Opens no weights, imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from .base import DraftProvider, TargetView

_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


class DraftArtifact:
    """A directory (or GGUF file) that may hold a drafter."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._config: dict[str, Any] | None = None
        self._read = False

    def has(self, file: str) -> bool:
        """Whether ``file`` (a path below the directory) is a file there."""
        return (self.directory / file).is_file()

    def config(self) -> dict[str, Any] | None:
        """The parsed ``config.json``, read at most once; ``None`` if it is absent, unreadable or no JSON object."""
        if not self._read:
            self._read = True
            self._config = self._parse()
        return self._config

    def holds_model(self) -> bool:
        """Whether it looks like a complete language model: a GGUF file, or a config that names one, and weights.

        ``directory`` may be a GGUF file itself. Neither config nor weights are checked further.
        """
        if self.directory.suffix == ".gguf":
            return self.directory.is_file()
        config = self.config()
        if config is None:
            return self._count("*.gguf") == 1
        named = "model_type" in config or "architectures" in config
        return named and any(self._count(pattern) for pattern in _WEIGHT_FILES)

    def _count(self, pattern: str) -> int:
        return sum(1 for _ in self.directory.glob(pattern))

    def _parse(self) -> dict[str, Any] | None:
        try:
            parsed = json.loads((self.directory / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None


@dataclass(frozen=True)
class LoadRequest:
    """What a kind is asked to load. ``directory``: its weights, ``None`` for model-free kinds.

    ``view``: facts of the target. ``num_draft_tokens``: largest depth, ``None`` = the kind's default.
    ``lookup_min``, ``lookup_max``: n-gram windows in tokens, for prompt lookup. ``shared_tokens``: output tokens of
    earlier requests of the same namespace that a kind may remember to draft from; 0 = none.
    """

    directory: str | Path | None
    view: TargetView
    num_draft_tokens: int | None = None
    lookup_min: int | None = None
    lookup_max: int | None = None
    shared_tokens: int = 0

    def settle_tokens(self, default: int, most: int) -> int:
        """The depth to use: the one asked for, at most ``most``, or ``default``."""
        wanted = self.num_draft_tokens
        if wanted is None:
            return default
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= most:
            raise ConfigError("spec_tokens", f"must be an integer in [0, {most}] for this drafter, not {wanted!r}")
        return wanted


@dataclass(frozen=True)
class LoadedDraft:
    """A provider, which the caller now owns, the depth settled for it and the kind it was loaded as."""

    provider: DraftProvider
    num_draft_tokens: int
    kind: str


@dataclass(frozen=True)
class NativeDraft:
    """What a target graph says in its ``native_draft`` of the drafter inside it: kind and largest depth."""

    kind: str
    num_draft_tokens: int
