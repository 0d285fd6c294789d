"""Deltas between the engine's thread and a loop: in order, joined while nobody reads, one waking for many."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.delta_stream import DeltaStream, LoopMailbox, joined
from paceline.engine.outputs import Logprob, RequestMetrics, RequestOutput, SpeculativeMetrics, StreamDelta, TextPiece


def delta(number: int, index: int = 0, last: bool = False) -> StreamDelta:
    text = f"<{number}>"
    score = {number: Logprob(-1.0, 1, text)}
    return StreamDelta(text, (number,), _output() if last else None, index, (score,), (TextPiece(text, "plain"),))


def _output() -> RequestOutput:
    spec = SpeculativeMetrics(1.0, 0.0, (0,), 0, 0, 0, 0, 0, 0, 0.0, (), ())
    return RequestOutput("r", None, (1,), (), RequestMetrics(1, 1, 0, None, 0.0, spec))


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9))
def test_joining_loses_and_reorders_nothing(numbers: list[int]) -> None:
    parts = [delta(number, last=place == len(numbers) - 1) for place, number in enumerate(numbers)]
    whole = joined(parts)
    assert whole.text == "".join(part.text for part in parts)
    assert list(whole.token_ids) == numbers and whole.output is parts[-1].output
    assert whole.logprobs is not None
    assert [next(iter(entry)) for entry in whole.logprobs] == numbers
    assert "".join(piece.text for piece in whole.pieces) == whole.text


def test_deltas_without_scores_stay_without() -> None:
    assert joined([StreamDelta("a", (1,)), StreamDelta("b", (2,))]).logprobs is None


class _CountingLoop(asyncio.SelectorEventLoop):
    wakings = 0

    def call_soon_threadsafe(self, *arguments, **options):  # type: ignore[no-untyped-def]
        _CountingLoop.wakings += 1
        return super().call_soon_threadsafe(*arguments, **options)


def test_a_slow_reader_gets_everything_at_once() -> None:
    heard: list[int] = []

    async def main() -> None:
        mailbox = LoopMailbox(asyncio.get_running_loop())
        streams = [DeltaStream(mailbox, 2, lambda part: heard.extend(part.token_ids)) for _ in range(3)]

        def produce() -> None:
            for number in range(50):
                for stream in streams:
                    for index in (0, 1):
                        stream.put(delta(number, index, last=number == 49))

        thread = threading.Thread(target=produce)
        thread.start()
        thread.join()  # the loop stands still meanwhile
        assert _CountingLoop.wakings == 1
        for stream in streams:
            first, second = await stream.take()
            assert (first.index, second.index) == (0, 1)
            assert list(first.token_ids) == list(range(50)) and stream.finished
        assert len(heard) == 300

    loop = _CountingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> list[str]:
        stream = DeltaStream(LoopMailbox(asyncio.get_running_loop()), 1)
        asyncio.get_running_loop().call_later(0.01, stream.put, delta(1))
        asyncio.get_running_loop().call_later(0.02, stream.put, delta(2, last=True))
        return [part.text async for part in stream]

    assert asyncio.run(main()) == ["<1>", "<2>"]


def test_a_closed_loop_harms_no_engine() -> None:
    async def main() -> DeltaStream:
        return DeltaStream(LoopMailbox(asyncio.get_running_loop()), 1)

    stream = asyncio.run(main())
    stream.put(delta(1))


def test_a_joiner_that_keeps_the_last_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.test_delta_stream.joined", lambda parts: parts[-1])
    with pytest.raises(AssertionError):
        test_joining_loses_and_reorders_nothing()
