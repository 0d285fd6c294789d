"""The asyncio facade over a reciting engine: streams side by side, cancellation, closing."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from tests.engine.fake_engine import FakeEngine
from tests.engine.tokenizers_for_tests import byte_level

from paceline import AsyncLLM, EngineClosed, RequestError, SamplingParams


@functools.cache
def _tokenizer() -> Any:
    return byte_level()


def _engine(**options: Any) -> FakeEngine:
    return FakeEngine(_tokenizer().encode("the other people"), tokenizer=_tokenizer(), bursts=[3, 2], **options)


def test_streams_run_side_by_side() -> None:
    async def main() -> list[str]:
        async with AsyncLLM.from_engine(_engine()) as llm:

            async def one(most: int) -> str:
                deltas = [delta async for delta in llm.stream("hi", SamplingParams(max_tokens=most))]
                assert deltas[-1].output is not None
                assert "".join(delta.text for delta in deltas) == deltas[-1].output.text
                return deltas[-1].output.text

            return list(await asyncio.gather(*(one(most) for most in (1, 2, 50))))

    assert asyncio.run(main()) == ["t", "th", "the other people"]


def test_whole_results_and_chat() -> None:
    async def main() -> None:
        engine = _engine(default_params={"temperature": 0.5})
        async with AsyncLLM.from_engine(engine) as llm:
            output = await llm.generate("hi", request_id="mine")
            assert (output.request_id, output.text) == ("mine", "the other people")
            answer = await llm.chat([{"role": "user", "content": "x"}], chat_template_kwargs={"tools": None})
            assert answer.finish_reason == "stop"
        assert [request.params.temperature for request in engine.seen] == [1.0, 0.5]

    asyncio.run(main())


def test_cancelling_a_task_aborts_its_request() -> None:
    async def main() -> None:
        engine = _engine(hold=threading.Event())
        async with AsyncLLM.from_engine(engine) as llm:
            task = asyncio.create_task(llm.generate("hi"))
            while not engine.seen:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.seen[0].abort.reason == "the caller stopped reading"

    asyncio.run(main())


def test_an_abort_ends_the_stream() -> None:
    async def main() -> None:
        async with AsyncLLM.from_engine(_engine(hold=threading.Event())) as llm:
            task = asyncio.create_task(llm.generate("hi", request_id="r"))
            await asyncio.sleep(0.01)
            assert llm.abort("r")
            assert (await task).finish_reason == "abort"

    asyncio.run(main())


def test_refusals_and_closing() -> None:
    async def main() -> None:
        engine = _engine(hold=threading.Event())
        llm = AsyncLLM.from_engine(engine)
        for call in (lambda: llm.stream(""), lambda: llm.stream([]), lambda: llm.chat_stream([])):
            with pytest.raises(RequestError):
                call()
        task = asyncio.create_task(llm.generate("hi"))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(llm.close)
        with pytest.raises(EngineClosed):
            await task
        with pytest.raises(EngineClosed):
            await llm.generate("hi")

    asyncio.run(main())
