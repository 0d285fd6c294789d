"""A byte-level BPE tokenizer of 320 ids, written as real tokenizer files. It knows nothing of models.

Ids 0 to 3 are special, 4 to 259 the bytes, 260 to 319 merges of frequent English beginnings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

END_OF_TEXT, IM_START, IM_END, PAD = 0, 1, 2, 3
TOKENIZER_SIZE = 320

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
_MERGED_WORDS = (
    "the and of to in that is for it was on with as be by at not are this from or have an they which one what when "
    "would there their about could other people"
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _merges(words: str, count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges that build the words left to right, each with its leading space."""
    merges: dict[tuple[str, str], None] = {}
    for word in words.split():
        built = "Ġ"
        for letter in word:
            merges[built, letter] = None
            built += letter
    return list(merges)[:count]


def build_tokenizer() -> Any:
    """The tokenizer as a ``transformers`` fast tokenizer with a ChatML-like chat template; EOS is ``<|im_end|>``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fast_tokenizer: Any = PreTrainedTokenizerFast
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(_MERGED_WORDS, TOKENIZER_SIZE - len(_SPECIAL) - len(alphabet))
    pieces = [*_SPECIAL, *alphabet, *(left + right for left, right in merges)]
    assert len(pieces) == len(set(pieces)) == TOKENIZER_SIZE
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in _SPECIAL])
    return fast_tokenizer(
        tokenizer_object=tokenizer,
        eos_token=_SPECIAL[IM_END],
        pad_token=_SPECIAL[PAD],
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def write_tokenizer(directory: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and the chat template into ``directory``."""
    build_tokenizer().save_pretrained(directory)
