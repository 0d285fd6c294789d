"""Words and breaker strings of a request as token ids. Knows a tokenizer only as the function or texts it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.errors import RequestError


def bad_word_ids(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Id sequences of ``words``, each as it stands at the start of a text and after a space, as vLLM does.

    ``encode`` gives the ids of a text without special tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise RequestError("bad_words", f"holds {word!r}, which has no text")
        for text in (bare, " " + bare):
            found[tuple(encode(text))] = None
    return tuple(ids for ids in found if ids)


def breaker_ids(breakers: Sequence[str], texts: Sequence[str]) -> frozenset[int]:
    """Ids whose text holds a breaker string, as llama.cpp finds them; ``texts`` [V]: the text of each id.

    A string that no single token holds cannot break a repetition and is refused.
    """
    found: set[int] = set()
    for breaker in breakers:
        ids = [token for token, text in enumerate(texts) if breaker in text] if breaker else []
        if not ids:
            raise RequestError("dry_sequence_breakers", f"no token of the model holds {breaker!r}; leave it out")
        found.update(ids)
    return frozenset(found)
