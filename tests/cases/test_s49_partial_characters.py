"""S49: characters of several tokens reach the caller whole, however bursts cut them and wherever the answer ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.features import EOS, PROMPTS, SPEC, decoder, tokenizer

from paceline.core.params import SamplingParams
from paceline.core.row import Row
from paceline.testing.drafters import RowDrafter, upcoming
from paceline.testing.features import departures, open_llm
from paceline.testing.harness import Setup
from paceline.testing.toy import ToyTarget

TEXT = "a🙂한글 שלום 🇩🇪é the"
#: Bytes that are no UTF-8: a lone continuation, 0xff, and the beginning of a character that never comes.
BYTES = {
    byte: next(i for i in range(4, 260) if tokenizer().convert_ids_to_tokens(i) == piece)
    for byte, piece in ((0x80, "Ģ"), (0xFF, "ÿ"), (0xF0, "ð"))
}
IDS = [
    *tokenizer().encode(TEXT, add_special_tokens=False),
    BYTES[0x80],
    BYTES[0xFF],
    *tokenizer().encode("한", add_special_tokens=False),
    BYTES[0xF0],
    *tokenizer().encode("x🙂", add_special_tokens=False),
]


class _Cut(RowDrafter):
    """The right text in bursts of ``size``, the first of them after ``start`` tokens."""

    id = "cut"

    def __init__(self, start: int, size: int) -> None:
        super().__init__()
        self._start = start
        self._size = size

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        done = len(row.tokens) - row.prompt_tokens
        return upcoming(decoder().recorded, row)[: self._size - 1] if done >= self._start else ()


def reciting(count: int) -> SamplingParams:
    """The first ``count`` tokens of the recorded answer, whatever the target would say."""
    return SamplingParams(max_tokens=count, temperature=0.0, forced_tokens=dict(enumerate(IDS)))


def decoded(count: int) -> str:
    return str(tokenizer().decode(IDS[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("start", range(1, 8))
def test_s49_bursts_cut_at_every_place(start: int, size: int) -> None:
    setup = Setup(rows=1, depth=8, device_round=bool(start % 2))
    with open_llm(ToyTarget(SPEC), EOS, setup, _Cut(start, size), tokenizer()) as llm:
        deltas = list(llm.stream(list(PROMPTS[0]), reciting(len(IDS))))
    whole = deltas[-1].output
    assert whole is not None and whole.token_ids == tuple(IDS)
    assert departures(decoder().run(PROMPTS[0], reciting(len(IDS))), whole) == []
    shown = ""
    for delta in deltas:
        delta.text.encode("utf-8")
        shown += delta.text
        assert decoded(len(IDS)).startswith(shown)
    assert shown == whole.text == decoded(len(IDS))
    assert max(len(delta.token_ids) for delta in deltas) == max(size, 1)


def test_s49_an_answer_that_ends_inside_a_character() -> None:
    with open_llm(ToyTarget(SPEC), EOS, Setup(rows=1, depth=8), _Cut(1, 6), tokenizer()) as llm:
        for count in range(1, len(IDS) + 1):
            deltas = list(llm.stream(list(PROMPTS[0]), reciting(count)))
            assert deltas[-1].output is not None
            (whole,) = llm.generate([list(PROMPTS[0])], reciting(count))
            assert "".join(delta.text for delta in deltas) == whole.text == deltas[-1].output.text == decoded(count)
