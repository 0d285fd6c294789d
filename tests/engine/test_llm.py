"""The synchronous facade over a reciting engine: prompts, options, order, refusals, interruption, closing."""

from __future__ import annotations

import functools
import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.fake_engine import FakeEngine
from tests.engine.tokenizers_for_tests import byte_level

from paceline import LLM, ConfigError, EngineClosed, RequestError, SamplingParams

_HELLO = [{"role": "user", "content": "hello"}]


@functools.cache
def _tokenizer() -> Any:
    return byte_level()


def _engine(text: str = "the other people", **options: Any) -> FakeEngine:
    return FakeEngine(_tokenizer().encode(text), tokenizer=_tokenizer(), bursts=[3, 2], **options)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(_engine()) as facade:
        yield facade


def _engine_of(llm: LLM) -> FakeEngine:
    assert isinstance(llm.engine, FakeEngine)
    return llm.engine


def test_one_prompt_and_many_and_ids(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5)
    ids = _tokenizer().encode("hi there")
    for prompts, texts in (
        ("hi there", ["hi there"]),
        (["hi there", "x"], ["hi there", "x"]),
        ([ids, ids], [None, None]),
        (ids, [None]),
        ([ids, "x"], [None, "x"]),
    ):
        outputs = llm.generate(prompts, params)
        assert [output.prompt for output in outputs] == texts
        assert all(len(output.token_ids) == 5 and output.finish_reason == "length" for output in outputs)
        assert list(outputs[0].prompt_token_ids) == ids


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(40)]
    params = [SamplingParams(max_tokens=1 + i % 7) for i in range(40)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.token_ids) for output in outputs] == [1 + i % 7 for i in range(40)]
    assert len({output.request_id for output in outputs}) == 40


def test_the_text_ends_with_eos(llm: LLM) -> None:
    (output,) = llm.generate("hi")
    assert (output.text, output.finish_reason, output.seed) == ("the other people", "stop", 7)
    assert output.metrics.completion_tokens == len(output.token_ids) + 1
    assert output.metrics.prompt_tokens == 2


@pytest.mark.parametrize(
    ("prompts", "field"),
    [
        ("", "prompts"),
        ([], "prompts"),
        ([""], "prompts"),
        ([[]], "prompts"),
        (["a", ""], "prompts[1]"),
        ([[1], [2], []], "prompts[2]"),
        ([[1], ["x"]], "prompts[1]"),
        ([[1], None], "prompts[1]"),
        ([[1], [1.5]], "prompts[1]"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(llm: LLM, prompts: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts)
    assert caught.value.field == field
    assert _engine_of(llm).seen == []
    assert llm.generate("a")[0].finish_reason == "stop"


def test_a_refusal_at_the_door_names_the_prompt_and_ends_the_others() -> None:
    engine = _engine(hold=threading.Event(), refuse=[1, 2])
    with LLM.from_engine(engine) as llm, pytest.raises(RequestError, match=r"^prompts\[1\]: prompt: is too long$"):
        llm.generate([[5], [1, 2], [6]])
    assert [request.abort.aborted for request in engine.seen] == [True]


def test_options_must_fit_the_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="sampling_params: holds 3 entries for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()] * 3)


def test_chat_uses_the_template_and_the_models_options() -> None:
    engine = _engine(default_params={"temperature": 0.25, "top_k": 9, "unknown": 1})
    with LLM.from_engine(engine) as llm:
        llm.chat(_HELLO)
        llm.chat([_HELLO, _HELLO], SamplingParams(temperature=0.5))
        llm.generate("x")
    expected = _tokenizer().apply_chat_template(_HELLO, add_generation_prompt=True, tokenize=False)
    assert _tokenizer().decode(engine.seen[0].prompt_ids) == expected
    assert [request.params.temperature for request in engine.seen] == [0.25, 0.5, 0.5, 1.0]
    assert llm.get_default_sampling_params(top_k=3) == SamplingParams(temperature=0.25, top_k=3)


@pytest.mark.parametrize(
    ("messages", "field"),
    [([], "messages"), ([[]], "messages[0]"), ([_HELLO, "x"], "messages[1]"), ([_HELLO, [{}]], "messages[1]")],
)
def test_what_is_no_conversation_is_refused_by_name(llm: LLM, messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.chat(messages)
    assert caught.value.field == field


def test_without_a_tokenizer_ids_only() -> None:
    with LLM.from_engine(FakeEngine([5, 6])) as llm:
        assert llm.generate([[1, 2]])[0].token_ids == (5, 6)
        for call in (lambda: llm.generate(["text"]), lambda: llm.chat(_HELLO)):
            with pytest.raises(RequestError, match="skip_tokenizer_init"):
                call()
        with pytest.raises(RequestError, match="stop: stop strings need a tokenizer"):
            llm.generate([[1]], SamplingParams(stop="x"))


def test_streaming_joins_to_the_result(llm: LLM) -> None:
    deltas = list(llm.stream("hi", SamplingParams(stop="people")))
    assert "".join(delta.text for delta in deltas) == "the other "
    assert deltas[-1].output is not None
    assert deltas[-1].output.stop_reason == "people"
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    ready = llm.encode_chat(_HELLO)
    assert "".join(delta.text for delta in llm.stream(ready)) == "the other people"
    assert llm.generate([ready, llm.encode("x")])[0].prompt == ready.text


def test_leaving_a_stream_aborts_its_request(llm: LLM) -> None:
    stream = llm.stream("hi")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert _engine_of(llm).seen[0].abort.reason == "the caller stopped reading"


def test_an_interrupt_aborts_what_is_in_flight() -> None:
    engine = _engine(hold=threading.Event())
    with LLM.from_engine(engine) as llm:
        ctrl_c = functools.partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
        threading.Timer(0.1, ctrl_c).start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b", "c"])
        assert [request.abort.reason for request in engine.seen] == ["the caller gave up"] * 3
        assert all(not thread.is_alive() for thread in engine.threads)


def test_closing_ends_what_is_in_flight_and_refuses_more() -> None:
    engine = _engine(hold=threading.Event())
    llm = LLM.from_engine(engine)
    threading.Timer(0.1, llm.close).start()
    with pytest.raises(EngineClosed):
        llm.generate(["a", "b"])
    with pytest.raises(EngineClosed):
        llm.generate("a")
    llm.close()


def test_an_engine_does_not_outlive_its_facade() -> None:
    engine = _engine()
    llm = LLM.from_engine(engine)
    llm.generate("a")
    del llm
    gc.collect()
    assert engine.closed


def test_a_misspelt_setting_is_refused_before_anything_loads() -> None:
    with pytest.raises(ConfigError, match="spec_token: unknown setting; did you mean 'spec_tokens'"):
        LLM("demo", spec_token=4)


def test_a_progress_bar_can_be_shown(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(llm.generate(["a", "b"], progress=True)) == 2
    assert "2/2" in capsys.readouterr().err
