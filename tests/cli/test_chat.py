"""``paceline chat``: history, commands, several lines, interrupts, a full context, pipes and terminals."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.engine.fake_engine import FakeEngine
from typer.testing import CliRunner

from paceline.cli.chat import MessageReader
from paceline.cli.main import app, main
from paceline.core.errors import RequestError
from paceline.engine.llm import LLM

ANSWER = "the other people"


def _chat(text: str, *flags: str) -> Any:
    return CliRunner().invoke(app, ["chat", *flags], input=text)


def _messages(engine: FakeEngine, place: int) -> str:
    return str(engine.tokenizer.decode(engine.seen[place].prompt_ids))


def _templated(engine: FakeEngine, *contents: str, system: str | None = None) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    first = [] if system is None else [{"role": "system", "content": system}]
    return str(engine.tokenizer.apply_chat_template([*first, *messages], add_generation_prompt=True, tokenize=False))


@pytest.fixture
def roomy(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The same engine with room for a conversation."""
    info = engine.info() | {"max_model_len": 4000, "kv_cache_tokens": 4000}
    monkeypatch.setattr(engine, "info", lambda: info)
    return engine


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Somebody at a terminal: lines, or exceptions that the keyboard raises; then Ctrl-D."""

    def type_lines(lines: Sequence[str | type[BaseException]]) -> None:
        waiting = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(waiting, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)

    return type_lines


def test_every_line_of_a_pipe_is_a_message_and_the_history_is_kept(roomy: FakeEngine) -> None:
    result = _chat("one\n\ntwo\n", "--system", "be brief")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n{ANSWER}\n")
    assert len(roomy.seen) == 2
    assert _messages(roomy, 1) == _templated(roomy, "one", ANSWER, "two", system="be brief")
    assert result.stderr.count("tokens per forward · ended by stop]") == 2
    assert "spec_method=auto" in result.stderr
    assert roomy.closed


def test_quiet_prints_answers_only(roomy: FakeEngine) -> None:
    result = _chat("one\n", "--quiet")
    assert (result.stdout, result.stderr) == (f"{ANSWER}\n", "")


def test_undo_reset_and_system(roomy: FakeEngine) -> None:
    result = _chat("one\ntwo\n/undo\nthree\n/reset\n/system be kind\nfour\n/system\nfive\n/exit\nsix\n")
    assert result.exit_code == 0
    assert len(roomy.seen) == 5
    assert _messages(roomy, 2) == _templated(roomy, "one", ANSWER, "three")
    assert _messages(roomy, 3) == _templated(roomy, "four", system="be kind")
    assert _messages(roomy, 4) == _templated(roomy, "four", ANSWER, "five")
    assert "[taken back: two]" in result.stderr


def test_options_are_set_and_taken_back(roomy: FakeEngine) -> None:
    roomy.default_params = {"temperature": 0.3}
    lines = "/set temp 0.5\n/set stop [peo, zz]\n/set\none\n/set temp\n/set logit-bias {5: -1}\ntwo\n"
    result = _chat(lines, "--top-k", "4")
    first, second = (request.params for request in roomy.seen)
    assert (first.temperature, first.stop_strings, first.top_k) == (0.5, ("peo", "zz"), 4)
    assert (second.temperature, second.logit_bias, second.top_k) == (0.3, {5: -1.0}, 4)
    assert "[top_k = 4, temperature = 0.5, stop = ['peo', 'zz']]" in result.stderr
    assert result.stdout == "the other \nthe other \n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/sett top_k 3", "/sett: unknown command; did you mean /set?"),
        ("/set tempratur 3", "tempratur: unknown option; did you mean 'temperature'?"),
        ("/set temperature hot", "temperature: must be a finite number, not 'hot'"),
        ("/set top_p 0", "top_p: must be in"),
        ("/set n 2", "n: must be 1 in a chat"),
        ("/undo", "undo: there is no message to take back"),
        ('"""\nnever closed', 'are not closed by """'),
    ],
)
def test_a_bad_line_is_told_and_the_rest_goes_on(roomy: FakeEngine, line: str, message: str) -> None:
    result = _chat(f"{line}\n" + ("" if line.startswith('"') else "one\n"))
    assert f"paceline: {'' if line.startswith(chr(34)) else message}" in result.stderr
    assert message in result.stderr
    assert result.exit_code == 2
    assert len(roomy.seen) == (0 if line.startswith('"') else 1)


def test_stats_and_help(roomy: FakeEngine) -> None:
    result = _chat("/stats\none\ntwo\n/stats\n/help\n", "--quiet")
    assert "[no complete answer yet]" in result.stderr
    assert "[2 answers · " in result.stderr
    assert "/undo " in result.stderr
    assert result.stdout == f"{ANSWER}\n{ANSWER}\n"


def test_messages_of_several_lines_and_with_a_slash(roomy: FakeEngine) -> None:
    _chat('one \\\ntwo\n"""three\n/four\n\nfive"""\n//six\n"""seven"""\n')
    said = [_messages(roomy, place).rsplit("<|im_start|>user\n", 1)[1] for place in range(4)]
    ends = "<|im_end|>\n<|im_start|>assistant\n"
    assert said == [f"one \ntwo{ends}", f"three\n/four\n\nfive{ends}", f"/six{ends}", f"seven{ends}"]


def test_a_full_context_is_told_and_the_conversation_stays(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    info = engine.info() | {"max_model_len": 100, "kv_cache_tokens": 100}
    monkeypatch.setattr(engine, "info", lambda: info)
    result = _chat(f"one\n{'two ' * 40}\nthree\n")
    assert "paceline: message: does not fit: with it the conversation has" in result.stderr
    assert "the context holds 100" in result.stderr
    assert "/reset starts over" in result.stderr
    assert result.exit_code == 2
    assert result.stdout == f"{ANSWER}\n{ANSWER}\n"
    assert _messages(engine, 1) == _templated(engine, "one", ANSWER, "three")
    room = 100 - len(engine.seen[1].prompt_ids)
    assert engine.seen[1].params.max_tokens == room


def test_a_failed_answer_changes_nothing(roomy: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.engine.detokenize import TokenDecoder

    whole, calls = TokenDecoder.bytes_of, iter([True])

    def broken_once(self: Any, token: int) -> bytes:
        if next(calls, False):
            raise ValueError("no such token")
        return whole(self, token)

    monkeypatch.setattr(TokenDecoder, "bytes_of", broken_once)
    result = _chat("one\ntwo\n")
    assert "paceline: ValueError: no such token" in result.stderr
    assert result.exit_code == 1
    assert _messages(roomy, 1) == _templated(roomy, "two")


def _interrupted_after(pieces: int) -> Any:
    whole = LLM.stream

    def stream(self: LLM, *arguments: Any) -> Iterator[Any]:
        for place, delta in enumerate(whole(self, *arguments)):
            if place == pieces:
                raise KeyboardInterrupt
            yield delta

    return stream


def test_ctrl_c_stops_the_answer_and_what_was_said_stays(
    roomy: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "stream", _interrupted_after(1))
        typed([KeyboardInterrupt, "one", "two"])
        assert main(["chat"]) == 0
    shown = capsys.readouterr()
    part = shown.out[: len(shown.out) // 2]
    assert part
    assert ANSWER.startswith(part)
    assert _messages(roomy, 1) == _templated(roomy, "one", part, "two")
    assert shown.err.count("[stopped; ") == 2
    assert all(request.abort.aborted for request in roomy.seen)


def test_an_answer_stopped_before_it_began_leaves_nothing(
    roomy: FakeEngine, monkeypatch: pytest.MonkeyPatch, typed: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "stream", _interrupted_after(0))
        typed(["one", "two"])
        assert main(["chat"]) == 0
    assert _messages(roomy, 1) == _templated(roomy, "two")


def test_an_interrupted_pipe_ends_the_command(roomy: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    with monkeypatch.context() as patch:
        patch.setattr(LLM, "stream", _interrupted_after(1))
        patch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
        assert main(["chat"]) == 130
    assert len(roomy.seen) == 1


def test_errors_at_a_terminal_do_not_become_the_exit_code(
    roomy: FakeEngine, capsys: pytest.CaptureFixture[str], typed: Any
) -> None:
    typed(["/nothing", "one"])
    assert main(["chat", "--max-tokens", "2"]) == 0
    shown = capsys.readouterr().err
    assert "/help lists the commands" in shown
    assert "[cut after 2 tokens; /set max_tokens N changes the limit]" in shown


def test_a_model_without_a_template_is_refused(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.tokenizer.chat_template = None
    assert main(["chat"]) == 2
    assert "model: has no chat template" in capsys.readouterr().err


def test_several_samples_are_refused_before_anything_is_asked(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--n", "2"]) == 2
    assert "n: must be 1 in a chat" in capsys.readouterr().err
    assert main(["chat", "--tempratur", "2"]) == 2
    assert "--tempratur" in capsys.readouterr().err


def test_the_reader_ends_at_the_end_of_input(typed: Any) -> None:
    typed(["one \\"])
    reader = MessageReader(terminal=True)
    assert reader.read() == "one \n"
    assert reader.read() is None
    typed(['"""', "two"])
    with pytest.raises(RequestError, match="are not closed"):
        reader.read()
