"""Small tokenizers of the three decoder kinds: byte-level, byte fallback (SentencePiece), and one of another kind."""

from __future__ import annotations

from typing import Any

from paceline.testing.tokenizer import build_tokenizer


def byte_level() -> Any:
    return build_tokenizer()


def byte_fallback() -> Any:
    """Like Llama 2: pieces with a leading space mark, ``<0xNN>`` for bytes, a leading space stripped. 0 is special."""
    from tokenizers import AddedToken, Tokenizer, models
    from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
    from transformers import PreTrainedTokenizerFast

    pieces = ["<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581hello", "\u2581the", "a", "b", "st", "op", ".", "\n", "é", "안", "\u2581\u2581\u2581"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.decoder = Sequence([Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def metaspace() -> Any:
    """A unigram-like vocabulary with the Metaspace decoder and no byte tokens."""
    from tokenizers import AddedToken, Tokenizer, models
    from tokenizers.decoders import Metaspace
    from transformers import PreTrainedTokenizerFast

    pieces = ["<s>", "<unk>", "\u2581", "\u2581hello", "\u2581the", "a", "b", "st", "op", ".", "é", "안", "\ufffd"]
    tokenizer = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.decoder = Metaspace()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


MAKERS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "metaspace": metaspace}
