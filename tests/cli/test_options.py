"""The flag tables: every setting has a flag, every alias of the conventions is there, types agree with the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.cli.chat import chat
from paceline.cli.doctor import doctor
from paceline.cli.generate import generate
from paceline.cli.options import ENGINE_FLAGS, MODEL_FLAG, Flag, given
from paceline.cli.serve import serve
from paceline.core.config import EngineConfig, setting_names

#: Settings without a flag, and why.
_NO_FLAG = {
    "seed": "--seed is that of the request, which one command seeds by itself",
    "skip_tokenizer_init": "commands read and write text, which needs the tokenizer",
}
_EXAMPLES = {int: 64, float: 0.5, bool: False}
_TEXTS = {"coupling": "gumbel", "dtype": "float32", "generation_config": "none", "speculative_config": "{}"}


def test_every_setting_has_a_flag() -> None:
    visible = {flag.name for flag in (MODEL_FLAG, *ENGINE_FLAGS) if not flag.hidden}
    assert visible == (set(setting_names()) - _NO_FLAG.keys()) | {"speculative_config"}


def test_flags_have_the_types_of_their_settings() -> None:
    for flag in (MODEL_FLAG, *ENGINE_FLAGS):
        if not flag.hidden:
            value = _EXAMPLES.get(flag.kind, _TEXTS.get(flag.name, "x"))
            EngineConfig.build(environ={}, **{flag.name: value})


def test_the_aliases_of_the_conventions() -> None:
    spellings = {flag.name: set(flag.spellings) for flag in ENGINE_FLAGS}
    assert {"--spec-method", "--speculative-algorithm"} <= spellings["spec_method"]
    assert {"--spec-model", "--draft-model", "-md", "--speculative-draft-model"} <= spellings["spec_model"]
    assert {"--spec-tokens", "--num-draft-tokens", "--speculative-num-draft-tokens"} <= spellings["spec_tokens"]
    assert spellings["spec_adaptive"] == {"--spec-adaptive/--no-spec-adaptive"}


@pytest.mark.parametrize("command", [generate, chat, doctor, serve])
def test_no_flag_is_spelt_twice(command: Callable[..., None]) -> None:
    parameters = command.__signature__.parameters.values()  # type: ignore[attr-defined]
    spelt = [name for each in parameters for name in (each.default.param_decls or ())]
    assert len(spelt) == len(set(spelt))
    assert "--config" in spelt


def test_chat_takes_what_generate_takes_but_for_prompts_and_documents() -> None:
    options = [_shapes(command) for command in (generate, chat)]
    assert options[0].keys() - options[1].keys() == {"prompt", "file", "chat", "as_json"}
    assert options[1].keys() <= options[0].keys()
    assert all(options[0][name] == options[1][name] for name in options[1])


def _shapes(command: Callable[..., None]) -> dict[str, Any]:
    parameters = command.__signature__.parameters  # type: ignore[attr-defined]
    return {name: (each.annotation, each.default.param_decls) for name, each in parameters.items()}


def test_what_was_not_given_is_left_out() -> None:
    flags = [Flag("a", int, "", ""), Flag("b", bool, "", ""), Flag("c", list[str], "", "")]
    assert given(flags, {"a": None, "b": False, "c": [], "d": 1}) == {"b": False}
    assert given(flags, {"a": 0, "b": None, "c": ["x"]}) == {"a": 0, "c": ["x"]}
