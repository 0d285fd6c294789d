"""A tokenizer as the text that grammar backends are built from. Knows no grammar."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.errors import ConfigError


def tokenizer_json(tokenizer: object) -> str:
    """Contents of ``tokenizer.json`` for a fast ``transformers`` tokenizer, a ``tokenizers.Tokenizer``, a path to such
    a file, or those contents themselves. Padding and truncation are left out, as they are no part of the vocabulary."""
    if isinstance(tokenizer, Path):
        text = tokenizer.read_text("utf-8")
    elif isinstance(tokenizer, str):
        text = tokenizer
    else:
        text = _serialised(getattr(tokenizer, "backend_tokenizer", tokenizer))
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError("tokenizer", f"is not the JSON of a fast tokenizer: {error}") from None
    if not isinstance(content, dict) or "model" not in content:
        raise ConfigError("tokenizer", "is not the JSON of a fast tokenizer: it has no model")
    content["padding"] = content["truncation"] = None
    content["decoder"] = _plain_decoder(content.get("decoder"))
    return json.dumps(content, ensure_ascii=False)


def _plain_decoder(decoder: object) -> object:
    """A Metaspace decoder as the replacement of marks by spaces that it is: backends ask no more of a decoder than
    which bytes a token stands for."""
    if not isinstance(decoder, dict) or decoder.get("type") != "Metaspace":
        return decoder
    spaces = {"type": "Replace", "pattern": {"String": decoder.get("replacement", "▁")}, "content": " "}
    return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def _serialised(backend: object) -> str:
    to_str = getattr(backend, "to_str", None)
    if to_str is None:
        raise ConfigError("tokenizer", f"{type(backend).__name__} is not a fast tokenizer; grammars need one")
    return str(to_str())
