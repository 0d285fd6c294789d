"""Consumers: stop strings in bursts (S10), trimmed ids (S11), whole characters (S49), figures and failures."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fake_engine import make_row, recite
from tests.engine.tokenizers_for_tests import byte_level

from paceline.core.request import SamplingParams
from paceline.core.row import Finished
from paceline.engine.consumer import ResultConsumer, StreamConsumer, Submission
from paceline.engine.detokenize import TokenDecoder
from paceline.engine.outputs import RequestOutput, StreamDelta

_EOS = 2
_TEXT = "Once the 안녕 🇫🇷 other people שלום said: stop. Then they about-turned é."


@functools.cache
def _tokenizer() -> Any:
    return byte_level()


@functools.cache
def _answer() -> tuple[int, ...]:
    return tuple(_tokenizer().encode(_TEXT))


def _stream(params: SamplingParams, bursts: Sequence[int], answer: Sequence[int] | None = None) -> list[StreamDelta]:
    deltas: list[StreamDelta] = []
    submission = Submission("r", "hi", (5, 6), params, TokenDecoder(_tokenizer()), 4)
    row = make_row((5, 6), params)
    recite(row, StreamConsumer(submission, deltas.append), _answer() if answer is None else answer, bursts, _EOS)
    return deltas


def _output(deltas: list[StreamDelta]) -> RequestOutput:
    assert [delta.output is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    output = deltas[-1].output
    assert output is not None
    assert "".join(delta.text for delta in deltas) == output.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == output.token_ids
    return output


_BURSTS = st.lists(st.integers(1, 9), max_size=30)


@given(_BURSTS)
def test_bursts_change_nothing(bursts: list[int]) -> None:
    output = _output(_stream(SamplingParams(), bursts))
    assert output.text == _TEXT
    assert output.token_ids == _answer()
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.metrics.completion_tokens == len(_answer()) + 1  # the EOS is counted, and is no part of the ids


@given(_BURSTS, st.integers(0, len(_TEXT) - 1), st.integers(1, 12), st.booleans())
def test_a_stop_string_anywhere(bursts: list[int], start: int, length: int, include: bool) -> None:
    stop = _TEXT[start : start + length]
    params = SamplingParams(stop=["never there", stop], include_stop_str_in_output=include)
    deltas = _stream(params, bursts)
    output = _output(deltas)
    first = _TEXT.index(stop)
    assert output.text == _TEXT[: first + len(stop) if include else first]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert all(output.text.startswith("".join(d.text for d in deltas[:n])) for n in range(len(deltas) + 1))
    ids = output.token_ids
    assert ids == _answer()[: len(ids)]
    assert stop in _tokenizer().decode(ids)  # the last id completes the string,
    assert stop not in _tokenizer().decode(ids[:-1])  # and none comes after it
    assert output.metrics.completion_tokens == len(ids)


@given(_BURSTS, st.integers(1, 80))
def test_max_tokens(bursts: list[int], most: int) -> None:
    output = _output(_stream(SamplingParams(max_tokens=most), bursts))
    assert output.token_ids == _answer()[:most]
    assert output.text == _tokenizer().decode(_answer()[:most])
    assert output.finish_reason == ("length" if most <= len(_answer()) else "stop")


def test_a_stop_inside_a_token_and_the_first_of_two() -> None:
    answer = _tokenizer().encode("a the b")
    assert _tokenizer().decode([answer[1]]) == " the"  # one token holds both stops, inside
    output = _output(_stream(SamplingParams(stop=["e", "h"]), [8], answer))
    assert (output.text, output.stop_reason, output.token_ids) == ("a t", "h", tuple(answer[:2]))


def test_a_stop_at_the_very_last_token_of_a_burst_is_told_by_the_row() -> None:
    params = SamplingParams(stop="b")
    row = make_row((5,), params)
    results: list[RequestOutput] = []
    submission = Submission("r", None, (5,), params, TokenDecoder(_tokenizer()), 4)
    a, b = _tokenizer().encode("ab")
    consumer = ResultConsumer(submission, results.append)
    assert consumer.take(row, [a, b], None) == 2
    assert row.stopped
    consumer.finish(row, Finished("stop"))
    assert (results[0].text, results[0].token_ids, results[0].stop_reason) == ("a", (a, b), "b")


def test_a_stop_token_is_named() -> None:
    output = _output(_stream(SamplingParams(stop_token_ids=(_EOS,)), []))
    assert (output.finish_reason, output.stop_reason) == ("stop", _EOS)
    assert _EOS not in output.token_ids


def test_half_a_character_at_the_end_shows_as_in_the_whole() -> None:
    answer = _tokenizer().encode("ab€")[:-1]
    output = _output(_stream(SamplingParams(max_tokens=len(answer)), [3], answer))
    assert output.text == "ab\ufffd"


def test_held_back_text_is_released_at_the_end() -> None:
    deltas = _stream(SamplingParams(stop="ab!"), [2], _tokenizer().encode("xab"))
    assert [delta.text for delta in deltas] == ["x", "", "ab"]


def test_ids_alone_need_no_tokenizer() -> None:
    results: list[RequestOutput] = []
    row = make_row((1, 2), SamplingParams())
    recite(
        row, ResultConsumer(Submission("r", None, (1, 2), SamplingParams(), None, 0), results.append), [7, 8], [2], 2
    )
    assert (results[0].text, results[0].token_ids) == ("", (7, 8))


def test_a_sink_that_breaks_says_what_it_took_and_still_gets_the_end() -> None:
    deltas: list[StreamDelta] = []

    def emit(delta: StreamDelta) -> None:
        deltas.append(delta)
        if len(deltas) == 2:
            raise OSError("the reader is gone")

    row = make_row((1,), SamplingParams())
    submission = Submission("r", None, (1,), SamplingParams(), TokenDecoder(_tokenizer()), 4)
    recite(row, StreamConsumer(submission, emit), _answer(), [3, 3], 2)
    output = deltas[-1].output
    assert output is not None
    assert (output.finish_reason, row.generated, len(output.token_ids)) == ("error", 6, 6)
    assert isinstance(output.error, OSError)


def test_a_decoder_that_breaks_still_brings_the_end() -> None:
    class Broken(TokenDecoder):
        def bytes_of(self, token: int) -> bytes:
            raise ValueError("no such token")

    results: list[RequestOutput] = []
    params = SamplingParams(stop="x")
    row = make_row((1,), params)
    recite(row, ResultConsumer(Submission("r", None, (1,), params, Broken(_tokenizer()), 4), results.append), [4], [1])
    assert results[0].finish_reason == "error"
    assert row.generated == 0


def test_a_request_that_never_started_has_a_result() -> None:
    results: list[RequestOutput] = []
    consumer = ResultConsumer(Submission("r9", "hi", (1,), SamplingParams(), None, 3), results.append)
    consumer.finish(None, Finished("abort"))
    assert (results[0].request_id, results[0].finish_reason, results[0].seed) == ("r9", "abort", None)
    assert results[0].metrics.time_to_first_token is None
    assert results[0].metrics.speculative_decoding.acceptance_histogram == (0, 0, 0, 0)
