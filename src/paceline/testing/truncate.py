"""Cuts a model to its first layers: a quick stand-in for a small model of the same family, to draft with.

How well it drafts says nothing about real pairs; tokenizer, sizes and formats are those of the whole model.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.artifact import open_artifact

_LAYER = re.compile(r"layers\.(\d+)\.")
_PER_LAYER = ("layer_types", "no_rope_layers")
_OTHER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja")


def truncate_model(source: str | Path, directory: Path, layers: int) -> Path:
    """Write the model directory ``source`` with its first ``layers`` layers into ``directory``, which is returned.

    Embedding, final norm, head, tokenizer and generation config are copied as they are. ``source`` may also be what
    :func:`~paceline.models.artifact.open_artifact` finds by name, such as ``"demo"``; not a GGUF file.
    """
    from safetensors.torch import save_file

    artifact = open_artifact(str(source))
    if artifact.gguf is not None:
        raise ValueError(f"{source}: GGUF files cannot be cut; give a model directory")
    whole = artifact.config["num_hidden_layers"]
    if not 1 <= layers <= whole:
        raise ValueError(f"{source} has {whole} layers; layers must be in [1, {whole}], not {layers}")
    directory.mkdir(parents=True, exist_ok=True)
    names = [name for name in artifact.weights.names() if _layer_of(name) < layers]
    tensors = {name: artifact.weights.get(name).clone() for name in names}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_cut(artifact.config, layers), indent=2), "utf-8")
    for pattern in (*_OTHER_FILES, "generation_config.json"):
        for file in artifact.path.glob(pattern):
            shutil.copyfile(file, directory / file.name)
    return directory


def _layer_of(name: str) -> int:
    """Layer that a tensor belongs to; -1 for those of no layer."""
    found = _LAYER.search(name)
    return -1 if found is None else int(found.group(1))


def _cut(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The config of fewer layers: lists with one entry per layer are cut as well."""
    lists = {name: config[name][:layers] for name in _PER_LAYER if config.get(name)}
    return {**config, **lists, "num_hidden_layers": layers}
