"""Stop strings: the first to complete wins, however the text is cut; nothing past the cut is ever shown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.stopping import StopStrings

_TEXT = st.text("abc", max_size=24)
_STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def _by_definition(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Reads ever longer beginnings of the text until one ends in a stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def _run(pieces: list[str], stops: list[str], include: bool) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops, include)
    shown = []
    for piece in pieces:
        shown.append(matcher.feed(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.flush()], None


def _cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@given(_TEXT, _STOPS, st.booleans(), st.lists(st.integers(0, 24)))
def test_any_cut_gives_what_the_definition_says(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    shown, matched = _run(_cut(text, cuts), stops, include)
    assert ("".join(shown), matched) == _by_definition(text, stops, include)


@given(_TEXT, _STOPS, st.booleans(), _TEXT)
def test_what_is_shown_stays_right_whatever_follows(text: str, stops: list[str], include: bool, more: str) -> None:
    matcher = StopStrings(stops, include)
    shown = ""
    for character in text:
        if matcher.matched is None:
            shown += matcher.feed(character)
    assert _by_definition(text + more, stops, include)[0].startswith(shown)


def test_only_a_possible_beginning_is_held_back() -> None:
    matcher = StopStrings(["STOP"])
    assert [matcher.feed(piece) for piece in ("abS", "T", "xST")] == ["ab", "", "STx"]
    assert matcher.flush() == "ST"


def test_the_first_in_the_text_wins_not_the_first_in_the_list() -> None:
    shown, matched = _run(["one two three"], ["three", "two"], False)
    assert ("".join(shown), matched) == ("one ", "two")


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xcd")])
def test_of_two_that_end_together_the_longer_is_cut(include: bool, text: str) -> None:
    assert _run(["xcdy"], ["d", "cd"], include) == ([text], "cd")


def test_without_stop_strings_everything_passes() -> None:
    assert _run(["ab", "c"], [], False) == (["ab", "c", ""], None)


def test_the_property_catches_looking_at_one_piece_only() -> None:
    """Teeth: searching each piece alone misses a string split over two."""
    text, stops = "abcab", ["bc"]
    alone = next((piece for piece in ("ab", "cab") if "bc" in piece), None)
    assert alone is None
    assert _by_definition(text, stops, False) == ("a", "bc")
