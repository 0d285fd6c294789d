"""Tokenizers from GGUF metadata: byte-level BPE built directly, SentencePiece kinds through ``transformers``.

Which pieces a text is split into before merging is not stored in the file, only its name: :data:`SPLITS` restores it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import ModelError
from .gguf import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_DIGITS = "digits"
#: ``tokenizer.ggml.pre`` -> how text is split: ``None`` = GPT-2's own pattern, ``_DIGITS`` = single digits before it,
#: else a pattern whose matches are the pieces.
SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "smollm": _DIGITS,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
}
_NORMALISED = frozenset({"qwen2"})  # texts are brought into Unicode form NFC first
_BEGIN_BY_DEFAULT = frozenset({"llama-bpe", "llama3", "llama-v3"})  # a BOS token is added unless the file says no


def gguf_tokenizer(file: GGUFFile) -> Any:
    """The file's tokenizer as a ``transformers`` fast tokenizer with its chat template.

    Raises :class:`ModelError` naming the tokenizer kind if it cannot be restored faithfully.
    """
    kind = file.metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        return _wrap(file, _byte_level_bpe(file))
    if kind == "llama":
        return _through_transformers(file)
    raise ModelError(str(file.path), f"tokenizer kind {kind!r} is not supported; give the original one by --tokenizer")


def _byte_level_bpe(file: GGUFFile) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    tokens, kinds = _table(file, "tokens"), _table(file, "token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _table(file, "merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(kinds) != len(tokens) or any(len(merge) != 2 for merge in merges):
        raise ModelError(str(file.path), "is damaged: its tokenizer tables do not fit together")
    pre = file.metadata.get(_PREFIX + "pre", "gpt-2")
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _BEGIN_BY_DEFAULT))
    except Exception as error:  # the library raises a plain Exception for merges outside the vocabulary
        raise ModelError(str(file.path), f"is damaged: its tokenizer cannot be built ({error})") from error
    if pre in _NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(file, pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(file, pre, tokens)
    added = [pair for pair in zip(tokens, kinds, strict=True) if pair[1] in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])
    return tokenizer


def _table(file: GGUFFile, key: str) -> list[Any]:
    value = file.metadata.get(_PREFIX + key)
    if not isinstance(value, list):
        raise ModelError(str(file.path), f"metadata {_PREFIX + key!r} is missing; give a tokenizer by --tokenizer")
    return value


def _splitter(file: GGUFFile, pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if pre not in SPLITS:
        raise ModelError(
            str(file.path), f"pre-tokenizer {pre!r} is not supported; give the model's own tokenizer by --tokenizer"
        )
    pattern = SPLITS[pre]
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pattern == _DIGITS:
        first: Any = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == _DIGITS)
    return pre_tokenizers.Sequence([first, rest])


def _post_processor(file: GGUFFile, pre: str, tokens: list[str]) -> Any:
    from tokenizers import processors

    byte_level = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    begin = _special_token(file, tokens, "bos_token_id")
    if begin is None or not file.metadata.get(_PREFIX + "add_bos_token", pre in _BEGIN_BY_DEFAULT):
        return byte_level
    number = file.metadata[_PREFIX + "bos_token_id"]
    template = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, number)]
    )
    return processors.Sequence([byte_level, template])


def _special_token(file: GGUFFile, tokens: list[str], key: str) -> str | None:
    number = file.metadata.get(_PREFIX + key)
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        return None
    return tokens[number]


def _wrap(file: GGUFFile, tokenizer: Tokenizer) -> Any:
    import transformers

    build: Any = transformers.PreTrainedTokenizerFast
    tokens = _table(file, "tokens")
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
    special = {f"{name}_token": _special_token(file, tokens, key) for name, key in names.items()}
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return build(
        tokenizer_object=tokenizer,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in special.items() if token is not None},
    )


def _through_transformers(file: GGUFFile) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    except ImportError as error:
        raise ModelError(
            str(file.path), "reading this SentencePiece tokenizer needs the extra: pip install 'paceline[gguf]'"
        ) from error
    except Exception as error:  # transformers lets errors of many libraries through
        raise ModelError(
            str(file.path), f"its tokenizer cannot be read ({error}); give the original one by --tokenizer"
        ) from error
    tokenizer.chat_template = tokenizer.chat_template or file.metadata.get("tokenizer.chat_template")
    return tokenizer
