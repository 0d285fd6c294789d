"""A tokenizer as what grammar backends are built from: the text of each id, without the ids that stand for no text.
Knows no grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError


@dataclass(frozen=True)
class TokenizerText:
    """``text``: a ``tokenizer.json`` in which no text is spelt by a special token. ``size``: its highest id + 1.
    ``special_ids``: ids that stand for no text."""

    text: str
    size: int
    special_ids: frozenset[int]


def read_tokenizer(tokenizer: object, eos_ids: Iterable[int] = ()) -> TokenizerText:
    """Read a fast ``transformers`` tokenizer, a ``tokenizers.Tokenizer``, a path to a ``tokenizer.json`` or its text.

    Added tokens that are special or in ``eos_ids`` get names that occur in no text: else the tokenizer would spell a
    text such as ``<|im_end|>`` by the special token. Padding, truncation and the post-processor are left out.
    """
    content = _parsed(_text_of(tokenizer))
    eos = frozenset(eos_ids)
    model, added = content["model"], content.get("added_tokens") or []
    special = [token for token in added if token.get("special") or token["id"] in eos]
    names = {token["content"]: f"\0\ue000{token['id']}\ue000\0" for token in special}
    for token in special:
        token["content"] = names[token["content"]]
    ids = _rename(model, names)
    size = 1 + max([-1, *ids.values(), *(token["id"] for token in added)])
    unknown = ids.get(model.get("unk_token"), model.get("unk_id"))
    content["padding"] = content["truncation"] = content["post_processor"] = None
    content["decoder"] = _plain_decoder(content.get("decoder"))
    no_text = {token["id"] for token in special} | ({unknown} if isinstance(unknown, int) else set())
    return TokenizerText(json.dumps(content, ensure_ascii=False), size, frozenset(no_text))


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """Give pieces of the model their new names; returns the id of every piece."""
    vocab = model.get("vocab") or {}
    if isinstance(vocab, dict):
        model["vocab"] = ids = {names.get(piece, piece): place for piece, place in vocab.items()}
    else:  # unigram models list their pieces with a score
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        ids = {piece: place for place, (piece, _) in enumerate(model["vocab"])}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return ids


def _plain_decoder(decoder: object) -> object:
    """A Metaspace decoder as the replacement of marks by spaces that it is: backends ask no more of a decoder than
    which bytes a token stands for."""
    if not isinstance(decoder, dict) or decoder.get("type") != "Metaspace":
        return decoder
    spaces = {"type": "Replace", "pattern": {"String": decoder.get("replacement", "▁")}, "content": " "}
    return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def _text_of(tokenizer: object) -> str:
    if isinstance(tokenizer, Path):
        return tokenizer.read_text("utf-8")
    if isinstance(tokenizer, str):
        return tokenizer
    to_str = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "to_str", None)
    if to_str is None:
        raise ConfigError("tokenizer", f"{type(tokenizer).__name__} is not a fast tokenizer; grammars need one")
    return str(to_str())


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError("tokenizer", f"is not the JSON of a fast tokenizer: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ConfigError("tokenizer", "is not the JSON of a fast tokenizer: it has no model")
    return content
