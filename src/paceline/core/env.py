"""The only module that reads the environment. Keys start with ``PACELINE_`` and mirror fields of the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "PACELINE_"


def paceline_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """All ``PACELINE_*`` variables, lower case without the prefix; empty values count as unset."""
    source = os.environ if environ is None else environ
    return {key[len(PREFIX) :].lower(): value for key, value in source.items() if key.startswith(PREFIX) and value}


def use_passive_waiting() -> None:
    """Make OpenMP threads sleep instead of spin, unless the user chose otherwise. Call before torch is imported.

    Spinning threads collapse when other processes want the same cores: one forward can take fifty times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "0")


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where converted models, calibration tables and other rebuildable files live (``PACELINE_CACHE_DIR``)."""
    source = os.environ if environ is None else environ
    explicit = source.get("PACELINE_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser()
    return Path(source.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paceline"


def hub_token(environ: Mapping[str, str] | None = None) -> str | None:
    """Access token for the model hub, if the user set one (``HF_TOKEN``)."""
    source = os.environ if environ is None else environ
    return source.get("HF_TOKEN") or None


def hub_offline(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user asked that the hub is never contacted (``HF_HUB_OFFLINE``)."""
    source = os.environ if environ is None else environ
    return source.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def child_environment(**overrides: str) -> dict[str, str]:
    """This process's environment for a subprocess, with ``overrides`` set."""
    return {**os.environ, **overrides}
