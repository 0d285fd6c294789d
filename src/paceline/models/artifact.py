"""Opens a model: the demo, a local directory, a GGUF file or a hub id, as one record of weights and configuration.

Finding and checking only: no architecture is known here and nothing is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from .gguf import GGUFFile
from .gguf_model import GGUFWeights, gguf_config, gguf_eos_ids
from .progress import Progress as Progress  # part of this module's interface
from .weights import WeightSource, open_weights, read_json

DEMO = "demo"
_SAMPLE = 1 << 16


@dataclass(frozen=True, eq=False)
class ModelArtifact:
    """One opened model. ``path`` is its directory or GGUF file, ``identity`` its name and revision (name@revision).

    ``config`` is the parsed ``config.json`` (for GGUF: made from the metadata), ``generation_config`` the parsed
    ``generation_config.json`` or empty. ``gguf`` is set for GGUF files.
    """

    path: Path
    identity: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    weights: WeightSource
    gguf: GGUFFile | None = field(default=None, repr=False)

    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence: those of the generation config, else of the config, and the tokenizer's EOS."""
        declared = _ids(self.generation_config.get("eos_token_id"))
        text_config = self.config.get("text_config")
        for source in (self.config, text_config if isinstance(text_config, dict) else {}):
            declared = declared or _ids(source.get("eos_token_id"))
        return tuple(dict.fromkeys([*declared, *self._tokenizer_eos()]))

    def _tokenizer_eos(self) -> list[int]:
        if self.gguf is not None:
            return gguf_eos_ids(self.gguf)
        settings = _json_if_present(self.path / "tokenizer_config.json")
        token = settings.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str):
            return []
        for number, entry in (settings.get("added_tokens_decoder") or {}).items():
            if entry.get("content") == text:
                return [int(number)]
        tables = _json_if_present(self.path / "tokenizer.json")
        for entry in tables.get("added_tokens") or []:
            if entry.get("content") == text:
                return [int(entry["id"])]
        vocabulary = (tables.get("model") or {}).get("vocab")
        return _ids(vocabulary.get(text)) if isinstance(vocabulary, dict) else []


def open_artifact(
    model: str, revision: str | None = None, timeout: float = 10.0, progress: Progress | None = None
) -> ModelArtifact:
    """Find ``model`` (``"demo"``, a directory, a ``.gguf`` file or a hub id ``org/name``), check it and open it.

    ``revision`` (branch, tag or commit) applies to hub ids only. ``timeout``: seconds until the hub must answer.
    Damage is found here, before any compute. Raises :class:`ModelError` naming the file and what to do.
    """
    if model == DEMO:
        _refuse_revision(model, revision)
        from .demo import demo_artifact

        return demo_artifact(timeout, progress)
    path = Path(model).expanduser()
    if path.exists():
        _refuse_revision(model, revision)
        return _open_local(path)
    from .hub import fetch_model, is_hub_id

    if not is_hub_id(model):
        raise ModelError(model, "no such directory or file; give a model directory, a .gguf file or a hub id org/name")
    snapshot = fetch_model(model, revision, timeout=timeout, progress=progress)
    return open_directory(snapshot.path, f"{model}@{snapshot.commit}")


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelError(model, f"revision {revision!r} cannot be chosen here: it applies to hub ids (org/name) only")


def _open_local(path: Path) -> ModelArtifact:
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1 and not (path / "config.json").exists():
            return open_gguf(files[0])
        return open_directory(path)
    if path.suffix == ".gguf":
        return open_gguf(path)
    raise ModelError(str(path), "is neither a model directory nor a .gguf file; give the directory that holds it")


def open_directory(path: Path, identity: str | None = None) -> ModelArtifact:
    """Open a directory in Hugging Face layout. ``identity`` defaults to the directory's name and a fingerprint."""
    config = read_json(path / "config.json")
    weights = open_weights(path)
    if identity is None:
        identity = f"{path.resolve().name}@{_fingerprint([path / 'config.json', *weights.files])}"
    return ModelArtifact(path, identity, config, _json_if_present(path / "generation_config.json"), weights)


def open_gguf(path: Path) -> ModelArtifact:
    """Open one GGUF file of a supported architecture."""
    file = GGUFFile(path)
    config = gguf_config(file)
    identity = f"{path.stem}@{_fingerprint([path])}"
    return ModelArtifact(path, identity, config, {}, GGUFWeights(file), file)


def _json_if_present(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _ids(value: Any) -> list[int]:
    """Token ids given as one number or a list; anything else counts as none."""
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]


def _fingerprint(files: list[Path]) -> str:
    """Twelve hex digits that change when a file does: name, size, first and last bytes of each (not all of it)."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(json.dumps([path.name, size]).encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]
