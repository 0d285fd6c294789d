"""Settings of the server: names, variables, refusals; the command that starts it."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.kit import Reciting, listening

from paceline.cli import serve as command
from paceline.cli.main import main
from paceline.cli.options import Flag
from paceline.core.config import SERVER_SETTINGS, EngineConfig
from paceline.core.errors import ConfigError
from paceline.core.stats import EngineStats
from paceline.server.logs import JsonLines, TextLines, speculation_facts
from paceline.server.run import bind
from paceline.server.security import Keys, namespace_of
from paceline.server.settings import ServerSettings, server_settings
from paceline.testing.models import tiny_model


def test_names_are_those_that_the_configuration_knows() -> None:
    assert set(server_settings()) == set(SERVER_SETTINGS)
    assert {flag.name for flag in command.SERVER_FLAGS} == set(SERVER_SETTINGS)


def test_variables_and_values() -> None:
    environ = {"PACELINE_PORT": "9000", "PACELINE_API_KEY": "a, b", "PACELINE_SPEC_TOKENS": "3"}
    found = ServerSettings.build(environ=environ, host="::1", port=None)
    assert (found.port, found.api_key, found.host) == (9000, ("a", "b"), "::1")
    assert EngineConfig.build(environ=environ).spec.tokens == 3
    assert ServerSettings.build(environ=environ, port=1).port == 1


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"prot": 1}, "prot"),
        ({"port": 70000}, "port"),
        ({"port": "x"}, "port"),
        ({"port": True}, "port"),
        ({"max_queue": -1}, "max_queue"),
        ({"log_format": "xml"}, "log_format"),
        ({"tool_call_parser": "x"}, "tool_call_parser"),
        ({"reasoning_parser": "x"}, "reasoning_parser"),
        ({"api_key": [""]}, "api_key"),
        ({"drain_timeout": -1.0}, "drain_timeout"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings.build(environ={}, **values)
    assert caught.value.field == name
    with pytest.raises(ConfigError):
        ServerSettings.build(environ={"PACELINE_PORT": "many"})


def test_keys_and_namespaces() -> None:
    keys = Keys(["one"])
    assert keys.check("Bearer one") == "one" and keys.check("bearer one") == "one"
    assert [keys.check(given) for given in (None, "", "one", "Bearer on", "Bearer onee", "Bearer é")] == [None] * 6
    assert not Keys([]).required
    assert namespace_of(None, None) is None
    spaces = [namespace_of(*given) for given in (("a", None), (None, "a"), ("a", "a"), ("b", None))]
    assert len(set(spaces)) == 4


def test_a_taken_port_is_said_at_once() -> None:
    with listening(_app()) as url, pytest.raises(ConfigError, match="port"):
        bind(ServerSettings(port=int(url.rsplit(":", 1)[1])))


def _app() -> Any:
    from tests.server.kit import app_over

    return app_over(Reciting("x"))


def test_lines_of_the_log() -> None:
    record = logging.LogRecord("paceline.access", logging.INFO, "", 0, "%s %s", ("GET", "/"), None)
    record.status = 200
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["status"], line["level"]) == ("GET /", 200, "info")
    assert TextLines().format(record).endswith("info GET / status=200")
    before = EngineStats(num_drafts=2, num_draft_tokens=8, num_accepted_tokens=4, generation_tokens=10)
    now = EngineStats(num_drafts=6, num_draft_tokens=24, num_accepted_tokens=16, generation_tokens=40)
    facts = speculation_facts(before, now, 10.0)
    assert (facts["mean_acceptance_length"], facts["draft_acceptance_rate"]) == (4.0, 0.75)
    assert facts["tokens_per_second"] == 3.0
    assert "mean_acceptance_length" not in speculation_facts(now, now, 1.0)


def given(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[dict[str, Any], ServerSettings]:
    """What the command line asks for, without listening."""
    seen: list[Any] = []
    monkeypatch.setattr("paceline.server.run.serve", lambda load, settings: seen.append(settings))
    monkeypatch.setattr(command, "_load", lambda engine, log_format: seen.append(engine))
    original = command._server

    def listen(values: dict[str, Any]) -> tuple[Any, Any]:
        _, settings = original(values)
        return (lambda load, chosen: (load(), seen.append(chosen))), settings

    monkeypatch.setattr(command, "_server", listen)
    assert main(["serve", *words]) == 0
    return seen[0], seen[1]


def test_flags_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["demo", "--port", "81", "--api-key", "a", "--api-key", "b", "--spec-tokens", "3", "--seed", "5"]
    engine, settings = given(monkeypatch, *words)
    assert engine == {"model": "demo", "spec_tokens": 3, "seed": 5}
    assert (settings.port, settings.api_key) == (81, ("a", "b"))
    file = tmp_path / "serve.yaml"
    file.write_text("model: demo\nspec-tokens: 2\nserver:\n  port: 82\n  served-model-name: [x, y]\n")
    engine, settings = given(monkeypatch, "--config", str(file), "--port", "83")
    assert engine == {"model": "demo", "spec_tokens": 2}
    assert (settings.port, settings.served_model_name) == (83, ("x", "y"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["demo", "--model", "other"], "model"),
        (["demo", "--port", "70000"], "port"),
        (["demo", "--chat-template", "/nowhere"], "chat_template"),
        (["demo", "--tensor-parallel-size", "2"], "tensor_parallel_size"),
        (["demo", "--prot", "1"], "--prot"),
    ],
)
def test_wrong_command_lines_name_the_flag(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.fixture
def untouched_logs() -> Iterator[None]:
    """The handlers of the loggers that the command sets up, put back at the end."""
    loggers = [logging.getLogger(name) for name in ("paceline", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.usefixtures("untouched_logs")
def test_a_model_that_cannot_be_loaded_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere/model", "--port", "0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("paceline: ") and "/nowhere/model" in last


def test_a_misspelt_key_of_the_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("server:\n  prot: 82\n")
    assert main(["serve", "demo", "--config", str(file)]) == 2
    assert "server.prot" in capsys.readouterr().err


def test_every_flag_has_help() -> None:
    assert all(
        isinstance(flag, Flag) and flag.help.endswith((".", "written.", "off.")) for flag in command.SERVER_FLAGS
    )


def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    """A process of its own: it loads, answers, and ends cleanly when it is told to."""
    model = str(tiny_model("llama"))
    words = ["serve", model, "--served-model-name", "tiny", "--port", "0", "--dtype", "float32", "--log-format", "json"]
    words += ["--kv-cache-tokens", "2048", "--log-interval", "0.2"]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen([sys.executable, "-m", "paceline", *words], stderr=log)
    try:
        url = _address(log, process)
        with httpx.Client(base_url=url, timeout=30) as client:
            end = time.monotonic() + 60
            while client.get("/health").status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.05)
            found = client.post("/v1/completions", json={"model": "tiny", "prompt": "the secret", "max_tokens": 9})
            assert found.status_code == 200
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    except httpx.TransportError as error:
        log.seek(0)
        raise AssertionError(f"the server has gone: {log.read()}") from error
    finally:
        process.kill()
    log.seek(0)
    lines = [json.loads(line) for line in log.read().splitlines() if line.startswith("{")]
    assert any(line["message"] == "speculation" and line["tokens_per_second"] > 0 for line in lines)
    assert any(line["message"] == "POST /v1/completions 200" and line["request_id"] for line in lines)
    (ready,) = [line for line in lines if line["message"] == "ready"]
    assert ready["settings"]["kv_cache_tokens"] == 2048 and ready["engine"]["drafter"]
    assert not any("secret" in json.dumps(line) for line in lines)


def _address(log: Any, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, from its log."""
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        log.seek(0)
        for line in log.read().splitlines():
            if line.startswith("{") and "listening on" in line:
                return str(json.loads(line)["message"].removeprefix("listening on "))
        time.sleep(0.05)
    log.seek(0)
    raise AssertionError(log.read())
