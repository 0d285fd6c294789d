"""Loads the tokenizer and chat template of a model through ``transformers``. Knows nothing of prompts or requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from .artifact import ModelArtifact
from .gguf import GGUFFile
from .gguf_tokenizer import gguf_tokenizer
from .hub import fetch_tokenizer, is_hub_id


def load_tokenizer(artifact: ModelArtifact, path: str | Path | None = None, trust_remote_code: bool = False) -> Any:
    """The model's ``transformers`` fast tokenizer, or the one at ``path`` (directory, GGUF file or hub id).

    Raises :class:`ModelError` naming the directory if there is none, or if it has no fast form.
    """
    if path is None:
        if artifact.gguf is not None:
            return gguf_tokenizer(artifact.gguf)
        return _from_directory(artifact.path, trust_remote_code)
    local = Path(path).expanduser()
    if local.suffix == ".gguf" and local.is_file():
        return gguf_tokenizer(GGUFFile(local))
    return _from_directory(local if local.is_dir() else _from_hub(str(path)), trust_remote_code)


def _from_hub(path: str) -> Path:
    if not is_hub_id(path):
        raise ModelError(path, "no such tokenizer; give a directory, a .gguf file or a hub id org/name")
    return fetch_tokenizer(path).path


def _from_directory(directory: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ModelError(
            str(directory), "holds no tokenizer.json; give a tokenizer by --tokenizer, or set skip_tokenizer_init"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # transformers lets errors of many libraries through
        raise ModelError(str(directory), f"the tokenizer cannot be loaded: {error}") from error
    if not tokenizer.is_fast:
        raise ModelError(str(directory), "its tokenizer has no fast form (tokenizer.json), which paceline needs")
    return tokenizer
