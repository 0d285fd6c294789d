"""Text from token ids, one token at a time: never half a character, nothing taken back, linear cost.

Knows decoders, not requests. The pieces of :meth:`Detokenizer.push` and the tail of :meth:`Detokenizer.flush` together
are what the tokenizer's ``decode`` makes of all ids (special tokens skipped, spaces left as they are).
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """Decodes the tokens of one request in order."""

    def push(self, token: int) -> str:
        """Text that is certain once ``token`` has been added to what came before; may be empty."""
        ...

    def flush(self) -> str:
        """The rest, when no token will follow: a character that was never completed decodes to U+FFFD."""
        ...


class TokenDecoder:
    """What detokenizers of one tokenizer share. ``tokenizer``: a ``transformers`` tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._special = frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._kinds = _decoder_kinds(self._backend)
        self._bytes: dict[int, bytes] = {}
        self._classes: dict[int, tuple[bool, bool]] = {}

    def start(self, markers: Mapping[int, str] | None = None) -> Detokenizer:
        """A detokenizer for a new request; ``markers``: special tokens that show as the given text."""
        plain: Detokenizer = _ByteStream(self) if self._kinds == ("ByteLevel",) else _Windows(self)
        return _Marked(plain, markers) if markers else plain

    @property
    def falls_back_to_bytes(self) -> bool:
        """Whether runs of ``<0xNN>`` tokens stand for bytes that the vocabulary lacks."""
        return "ByteFallback" in self._kinds

    @property
    def may_split_characters(self) -> bool:
        """Whether other tokens may hold a part of a character (or the tokenizer does not say)."""
        return self._backend is None or "ByteLevel" in self._kinds

    def skips(self, token: int) -> bool:
        """Whether a token never shows in the text: special, or an id that the vocabulary does not have."""
        return self._class_of(token)[0]

    def is_byte(self, token: int) -> bool:
        """Whether a token is one of the ``<0xNN>``."""
        return self._class_of(token)[1]

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokenizer's own decoding of ``tokens``."""
        if self._backend is not None:
            text = self._backend.decode(list(tokens), skip_special_tokens=True)
        else:
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def text_of(self, token: int) -> str:
        """One token's own text, special tokens by their name; a part of a character shows as U+FFFD."""
        return self._text_of(token) or "" if token in self._special else self.decode([token])

    def bytes_of(self, token: int) -> bytes:
        """Bytes of a token of a byte-level vocabulary; none for special tokens and ids without an entry."""
        known = self._bytes.get(token)
        if known is None:
            text = None if token in self._special else self._text_of(token)
            known = self._bytes[token] = b"" if text is None else _byte_level(text)
        return known

    def token_bytes(self, token: int) -> bytes | None:
        """Bytes that a token stands for, of special tokens their name; ``None`` where they cannot be told."""
        if self._kinds == ("ByteLevel",) and token not in self._special:
            return self.bytes_of(token)
        if self.falls_back_to_bytes and self.is_byte(token):
            return bytes([int((self._text_of(token) or "")[1:-1], 16)])
        text = self.text_of(token)
        return None if _REPLACEMENT in text else text.encode("utf-8", "replace")

    def _class_of(self, token: int) -> tuple[bool, bool]:
        known = self._classes.get(token)
        if known is None:
            text = None if token in self._special else self._text_of(token)
            known = text is None, text is not None and _BYTE_TOKEN.fullmatch(text) is not None
            self._classes[token] = known
        return known

    def _text_of(self, token: int) -> str | None:
        if self._backend is not None:
            text: str | None = self._backend.id_to_token(token)
        else:
            text = self._tokenizer.convert_ids_to_tokens(token)
        return text


class _ByteStream:
    """For byte-level vocabularies: the bytes of the tokens through an incremental UTF-8 decoder."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._bytes_of = decoder.bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._bytes_of(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Windows:
    """For every other decoder: decodes a short window twice, with and without its new tokens, and emits the difference.

    The window starts with tokens whose text is out already, because decoders treat the start of a text apart. A run of
    byte tokens is held until it ends: one invalid byte makes the decoder replace every byte of its run.
    """

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._shown: list[int] = []  # context, its text is out
        self._shown_text = ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        if self._decoder.skips(token):
            return ""
        self._held.append(token)
        if self._decoder.falls_back_to_bytes and self._decoder.is_byte(token):
            return ""
        return self._advance(self._decoder.may_split_characters)

    def flush(self) -> str:
        return self._advance(may_be_half=False) if self._held else ""

    def _advance(self, may_be_half: bool) -> str:
        text = self._decoder.decode([*self._shown, *self._held])
        if not text.startswith(self._shown_text) or (may_be_half and text.endswith(_REPLACEMENT)):
            return ""
        new = text[len(self._shown_text) :]
        if new:  # tokens without text of their own are no context for what follows
            self._shown, self._held = self._held, []
            self._shown_text = self._decoder.decode(self._shown)
        return new


class _Marked:
    """Shows some tokens as a text of their own; the text before one is complete."""

    def __init__(self, plain: Detokenizer, markers: Mapping[int, str]) -> None:
        self._plain = plain
        self._markers = markers

    def push(self, token: int) -> str:
        marker = self._markers.get(token)
        return self._plain.push(token) if marker is None else self._plain.flush() + marker

    def flush(self) -> str:
        return self._plain.flush()


def _decoder_kinds(backend: Any) -> tuple[str, ...]:
    """Types of the decoder's steps, outermost sequence unpacked; empty if the tokenizer has none of the known form."""
    decoder = None if backend is None else backend.decoder
    if decoder is None:
        return ()
    state = json.loads(decoder.__getstate__())
    steps = state.get("decoders", [state])
    return tuple(str(step.get("type")) for step in steps)


def _byte_level(text: str) -> bytes:
    """Bytes that a byte-level token's characters stand for; text outside that alphabet (added tokens) is itself."""
    table = _byte_alphabet()
    try:
        return bytes(table[character] for character in text)
    except KeyError:
        return text.encode("utf-8", errors="replace")


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, the other bytes follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    alphabet = {chr(byte): byte for byte in plain}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}
