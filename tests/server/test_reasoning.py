"""Thinking blocks: the split does not depend on how the text was cut, and text without a block comes out as it is."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.kit import HELLO, Reciting, answer, chunks_of, in_process, joined_chat, post

from paceline.server.reasoning import MARKERS, ReasoningSplitter

CASES = [
    ("plain text", False, "", "plain text"),
    ("  \n plain", False, "", "  \n plain"),
    ("<think>\nso\n\nthen\n</think>\n\nYes\n", False, "so\n\nthen", "Yes\n"),
    (" <think>so</think>Yes", False, "so", "Yes"),
    ("<think>\n</think>Yes", False, "", "Yes"),
    ("<think>never ends\n", False, "never ends", ""),
    ("<thi", False, "", "<thi"),
    ("a <think>b</think>", False, "", "a <think>b</think>"),
    ("so</think>Yes <think>", True, "so", "Yes <think>"),
    ("so </thin then", True, "so </thin then", ""),
    ("", False, "", ""),
    ("\n\n", False, "", "\n\n"),
]


def split(pieces: Iterable[str], opened: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(MARKERS[0], opened)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    return tuple("".join(part.text for part in parts if part.thinking is side) for side in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize(("text", "opened", "thought", "rest"), CASES)
def test_every_cut_gives_the_same_split(text: str, opened: bool, thought: str, rest: str) -> None:
    assert split([text], opened) == (thought, rest)
    assert split(text, opened) == (thought, rest)
    for place in range(len(text)):
        assert split([text[:place], text[place:]], opened) == (thought, rest)


_ALPHABET = ["<think>", "</think>", "<", "</", "think>", "\n", " ", "a"]


@given(st.lists(st.sampled_from(_ALPHABET), max_size=9), st.booleans(), st.data())
def test_any_text_cut_anyhow(words: list[str], opened: bool, data: st.DataObject) -> None:
    text = "".join(words)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(pieces, opened) == split([text], opened)


class _Careless(ReasoningSplitter):
    """Shows the beginning of a marker as text."""

    def finish(self) -> list:  # type: ignore[type-arg]
        self._held = ""
        return []


def test_a_splitter_that_loses_text_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.test_reasoning.ReasoningSplitter", _Careless)
    with pytest.raises(AssertionError):
        _check_all()


def _check_all() -> None:
    for case in CASES:
        test_every_cut_gives_the_same_split(*case)


@pytest.mark.parametrize("bursts", [(), (1,) * 99, (2, 3) * 20])
def test_over_http_the_block_is_its_own_field(bursts: tuple[int, ...]) -> None:
    with in_process(Reciting("<think>\nso it is\n</think>\n\nYes", bursts)) as client:
        (choice,) = answer(client, "/v1/chat/completions", messages=HELLO)["choices"]
        assert choice["message"]["reasoning_content"] == "so it is"
        assert choice["message"]["content"] == "Yes"
        document = answer(client, "/v1/chat/completions", messages=HELLO, return_token_ids=True)
        tokens = document["choices"][0]["token_ids"]
        counted = document["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted == tokens.index(321) + 1 <= document["usage"]["completion_tokens"]
        whole = joined_chat(chunks_of(post(client, "/v1/chat/completions", messages=HELLO, stream=True).text))
        assert (whole["reasoning"], whole["content"]) == ("so it is", "Yes")


def test_a_prompt_may_open_the_block() -> None:
    opened = {"messages": HELLO, "chat_template_kwargs": {"thinking": True}}
    with in_process(Reciting("so it is</think>Yes")) as client:
        (choice,) = answer(client, "/v1/chat/completions", **opened)["choices"]
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("so it is", "Yes")
    with in_process(Reciting("so it is</think>Yes"), reasoning_parser="none") as client:
        (choice,) = answer(client, "/v1/chat/completions", **opened)["choices"]
        assert choice["message"]["content"] == "so it is</think>Yes"
