"""``paceline generate``: where prompts come from, what reaches the engine, what is printed where, exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.fake_engine import FakeEngine

from paceline.cli.main import main
from paceline.engine.llm import LLM
from paceline.engine.outputs import Logprob


def _prompt(engine: FakeEngine, place: int = 0) -> str:
    return str(engine.tokenizer.decode(engine.seen[place].prompt_ids))


def test_text_goes_to_standard_output_and_the_rest_to_standard_error(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hi", "--no-chat", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "the other people\n"
    assert "exactness bitwise" in shown.err
    assert "spec_method=auto" in shown.err
    assert "17 tokens" in shown.err or f"{len(engine.answer) + 1} tokens" in shown.err
    assert "seed 3" in shown.err
    assert main(["generate", "hi", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("the other people\n", "")


def test_flags_and_aliases_reach_settings_and_options(engine: FakeEngine) -> None:
    engine.default_params = {"temperature": 0.3, "top_k": 5}
    words = "generate hi --model m --speculative-num-draft-tokens 3 --speculative-algorithm none --dtype float64"
    options = "--top-k 7 --stop x --stop yy --stop-token-ids 9 --ignore-eos --temp 0.5 -n 4 --max-num-seqs 2"
    assert main([*words.split(), *options.split()]) == 0
    config, params = engine.config, engine.seen[0].params
    assert (config.model.model, config.model.dtype) == ("m", "float64")
    assert (config.spec.method, config.spec.tokens, config.scheduler.max_num_seqs) == ("none", 3, 2)
    assert (params.top_k, params.stop_strings, params.stop_token_ids) == (7, ("x", "yy"), (9,))
    assert (params.ignore_eos, params.temperature, params.max_tokens) == (True, 0.5, 4)


def test_the_models_options_hold_unless_given(engine: FakeEngine) -> None:
    engine.default_params = {"temperature": 0.3}
    assert main(["generate", "hi"]) == 0
    assert engine.seen[0].params.temperature == 0.3


def test_the_default_length_is_cut_to_what_fits_and_a_given_one_is_not(engine: FakeEngine) -> None:
    assert main(["generate", "--no-chat", "hi"]) == 0
    assert main(["generate", "--no-chat", "hi", "--max-tokens", "4000"]) == 0
    assert [request.params.max_tokens for request in engine.seen] == [48 - 2, 4000]


def test_the_chat_template_and_the_system_message(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--system", "be brief"]) == 0
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert _prompt(engine) == engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert main(["generate", "hi", "--no-chat"]) == 0
    assert _prompt(engine, 1) == "hi"
    assert main(["generate", "hi", "--no-chat", "--system", "x"]) == 2
    assert "system: needs the chat template" in capsys.readouterr().err


def test_prompts_from_a_file_and_standard_input(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the text é")
    assert main(["generate", "--no-chat", "--file", str(file)]) == 0
    assert main(["generate", "--no-chat", "Shorten:", "-f", str(file)]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["generate", "--no-chat"]) == 0
    assert [_prompt(engine, i) for i in range(3)] == ["the text é", "Shorten:\n\nthe text é", "from a pipe"]


def test_many_prompts_from_lines(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]}]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert main(["generate", "--file", str(file)]) == 0
    assert capsys.readouterr().out == "--- 1 ---\nthe other people\n--- 2 ---\nthe other people\n"
    assert "two" in _prompt(engine, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "line 1 holds no prompt"),
        ('{"prompt": "a"}\nnot json', "line 2 is not JSON"),
        ("\n", "holds no prompt"),
        ("[1]", "line 1 holds no prompt"),
    ],
)
def test_lines_that_are_no_prompts_are_named(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    assert main(["generate", "--file", str(file)]) == 2
    assert message in capsys.readouterr().err
    assert engine.seen == []


def test_json_is_one_document(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--json", "--stop", "people"]) == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert data["results"][0]["outputs"][0] | {"token_ids": 0} == {
        "index": 0,
        "text": "the other ",
        "token_ids": 0,
        "finish_reason": "stop",
        "stop_reason": "people",
        "logprobs": None,
    }
    assert data["settings"]["spec_method"] == "auto"
    assert data["engine"]["exactness"] == "bitwise"
    assert data["summary"]["completion_tokens"] == len(data["results"][0]["outputs"][0]["token_ids"])
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "hi", "--spec-tokns", "3"], "--spec-tokns"),
        (["generate", "hi", "--spec-tokens", "x"], "--spec-tokens"),
        (["generate", "hi", "--spec-tokens", "65"], "spec_tokens: must be at most 64"),
        (["generate", "hi", "--dtype", "float16"], "dtype: must be one of"),
        (["generate", "hi", "--speculative-config", '{"methd": "x"}'], "speculative_config.methd: unknown key"),
        (["generate", "hi", "--tensor-parallel-size", "2"], "tensor_parallel_size:"),
        (["generate", "hi", "--top-p", "0"], "top_p: must be in"),
        (
            ["generate", "hi", "--typical-p", "0.5", "--filter-order", "temperature_last"],
            "typical_p: needs filter_order",
        ),
        (["generate", "hi", "--logit-bias", "5:3"], "--logit-bias: must be ID=VALUE"),
        (["generate", "hi", "--logit-bias", "5=1", "--logit-bias", "5=2"], "--logit-bias: gives 5 twice"),
        (["generate", "hi", "--hlg", "toe=low"], "--hlg: toe must be a number"),
        (["generate", "hi", "--regex", "a", "--choice", "b"], "--choice: cannot be combined with --regex"),
        (["generate", "hi", "--json-schema", "/no/such/file"], "--json-schema: /no/such/file cannot be read"),
        (["generate", "hi", "--logprobs", "1", "--quiet"], "logprobs: is not shown with --quiet"),
        (["generate", "hi", "--max-tokens", "0"], "max_tokens: must be"),
        (["generate", ""], "prompt: is empty"),
        (["generate"], "prompt: is missing"),
        (["generate", "--file", "/no/such/file"], "file: /no/such/file cannot be read"),
        (["generat", "hi"], "No such command 'generat'"),
        (["generate", "hi", "there"], "there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("paceline: ")
    assert shown.err.count("\n") == 1


def test_a_schema_that_is_no_json_names_its_file(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text("{")
    assert main(["generate", "hi", "--json-schema", str(file)]) == 2
    assert f"--json-schema: {file} is not JSON" in capsys.readouterr().err
    file.write_text('{"type": "object"}')
    assert main(["generate", "hi", "--json-schema", str(file)]) == 0
    assert engine.seen[0].params.structured_outputs == {"json": {"type": "object"}}


def test_what_is_impossible_is_null_in_json(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {7: Logprob(-0.5, 1, "a"), 8: Logprob(float("-inf"), 2, "b")}
    monkeypatch.setattr("paceline.engine.consumer.present_logprobs", lambda *arguments: (entry,))
    assert main(["generate", "hi", "--json", "--logprobs", "2", "--max-tokens", "1"]) == 0
    choice = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["results"][0]["outputs"][0]
    assert [scored["logprob"] for scored in choice["logprobs"][0].values()] == [-0.5, None]


def test_samples_are_printed_apart(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--n", "2", "--quiet"]) == 0
    text = "the other people"
    assert capsys.readouterr().out == f"--- sample 1 ---\n{text}\n--- sample 2 ---\n{text}\n"
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    assert main(["generate", "-f", str(file), "--samples", "2", "--quiet"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("---")]
    assert heads == [f"--- {number}, sample {sample} ---" for number in (1, 2) for sample in (1, 2)]
    assert main(["generate", "hi", "--n", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [choice["text"] for choice in data["results"][0]["outputs"]] == [text, text]
    assert len(data["summary"]["finish_reasons"]) == 2


def test_a_misspelt_variable_is_named(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_SPEC_TOKEN", "3")
    assert main(["generate", "hi"]) == 2
    assert "PACELINE_SPEC_TOKEN: unknown setting; did you mean 'spec_tokens'?" in capsys.readouterr().err


def test_a_failed_request_is_an_error_of_the_command(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, token: int) -> bytes:
        raise ValueError("no such token")

    monkeypatch.setattr("paceline.engine.detokenize.TokenDecoder.bytes_of", broken)
    assert main(["generate", "hi", "--quiet"]) == 1
    assert capsys.readouterr().err == "paceline: ValueError: no such token (--debug shows where)\n"
    with pytest.raises(ValueError, match="no such token"):
        main(["generate", "hi", "--quiet", "--debug"])


def test_an_interrupt_ends_with_130(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: LLM, *arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", interrupted)
    assert main(["generate", "hi", "--quiet"]) == 130
    assert capsys.readouterr().err == "paceline: interrupted\n"
    assert engine.closed


def test_a_missing_model_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--model", "/no/such/model", "--quiet"]) == 1
    assert "/no/such/model: no such directory or file" in capsys.readouterr().err
