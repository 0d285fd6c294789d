"""Cost tables on disk, one small JSON file per key. A file that cannot be used is measured again; never an error."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core import env
from ..core.costs import CostTable
from ..core.errors import ConfigError

_LOG = logging.getLogger("paceline.costs")
_FORMAT = 1


@dataclass(frozen=True)
class CostKey:
    """Everything that a measured table depends on. ``model`` is name@revision, ``drafter`` the provider's id; bytes
    tell apart what has the same name. ``device`` is the name of the chip, ``device_round`` whether whole rounds run on
    it, ``versions`` those of paceline and torch."""

    model: str
    weight_bytes: int
    dtype: str
    device: str
    threads: int
    drafter: str
    drafter_bytes: int
    depth: int
    rows: int
    max_model_len: int
    device_round: bool
    versions: tuple[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]

    def plain(self) -> dict[str, Any]:
        """The key as JSON gives it back."""
        return {**asdict(self), "versions": list(self.versions)}


@dataclass(frozen=True)
class Kept:
    """A table from disk. ``tries``: how often it was measured; of several results the one of least error is kept."""

    costs: CostTable
    tries: int = 1


class CostCache:
    """Tables below ``directory`` (default: ``costs`` in the cache directory of the user)."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = env.cache_dir() / "costs" if directory is None else directory

    def path(self, key: CostKey) -> Path:
        return self.directory / f"{key.digest}.json"

    def load(self, key: CostKey) -> Kept | None:
        """The table kept for ``key``; ``None`` if there is none, or none that can be read."""
        path = self.path(key)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("format") != _FORMAT or content.get("key") != key.plain():
                raise ConfigError("costs", "was written for something else")
            return Kept(CostTable.from_json(content["costs"]), int(content["tries"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, ConfigError) as error:
            _LOG.warning("the cost table %s cannot be used and is measured again: %s", path, error)
            return None

    def drop(self, key: CostKey) -> None:
        """Forget what is kept for ``key``, if anything is."""
        try:
            self.path(key).unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("the cost table %s cannot be removed: %s", self.path(key), error)

    def save(self, key: CostKey, costs: CostTable, tries: int = 1) -> bool:
        """Keep a table; the file appears whole or not at all. False, with a log line, if it cannot be written."""
        path = self.path(key)
        content = {"format": _FORMAT, "key": key.plain(), "tries": tries, "costs": costs.to_json()}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(prefix=f".{path.stem}-", dir=self.directory)
        except OSError as error:
            _LOG.warning("the cost table is not kept: %s", error)
            return False
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(partial, path)
        except OSError as error:
            Path(partial).unlink(missing_ok=True)
            _LOG.warning("the cost table is not kept: %s", error)
            return False
        return True
