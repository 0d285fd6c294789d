"""Tool calls: every dialect, every cut, the same events; what is no call stays text; and calls over HTTP (S24)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conftest import Served
from tests.server.kit import (
    HELLO,
    LLAMA_TEMPLATE,
    MISTRAL_TEMPLATE,
    Reciting,
    answer,
    chunks_of,
    error,
    in_process,
    joined_chat,
    post,
    tokenizer,
)

from paceline.grammar.backend import LlguidanceBackend
from paceline.grammar.spec import GrammarSpec
from paceline.grammar.tokens import read_tokenizer
from paceline.server.tools.dialects import DIALECTS, Dialect, Function, dialect_of
from paceline.server.tools.events import ToolParser, WrittenCall, collected, merged
from paceline.server.tools.hermes import HermesParser
from paceline.server.tools.llama3 import Llama3Parser
from paceline.server.tools.mistral import MistralParser

PATH = "/v1/chat/completions"
NAMES = ("look", "add")
PARIS = WrittenCall("look", '{"at": "Paris \\"{}\\" </tool_call>"}')
SUM = WrittenCall("add", '{"a": [1, {"b": 2}], "c": "é"}')
HERMES = [
    ("just text", "just text", []),
    ("a < b <tool", "a < b <tool", []),
    (f'Well. \n<tool_call>\n{{"name": "look", "arguments": {PARIS.arguments}}}\n</tool_call>', "Well.", [PARIS]),
    (
        (
            f'<tool_call>{{"arguments": {SUM.arguments}, "name": "add"}}</tool_call>\n'
            f'<tool_call>{{"name": "look", "id": 3, "arguments": {PARIS.arguments}}}</tool_call>\n'
        ),
        "",
        [SUM, PARIS],
    ),
    (
        f'<tool_call>{{"name": "add", "arguments": {json.dumps(SUM.arguments)}}}</tool_call> then',
        "then",
        [SUM],
    ),
    ('<tool_call>{"name": "look"}</tool_call>', "", [WrittenCall("look", "{}")]),
    ('<tool_call>{"name": "look", "arguments": null}', "", [WrittenCall("look", "{}")]),
    ('<tool_call>{"name": "look", "arguments": {"at": "Par', "", [WrittenCall("look", '{"at": "Par')]),
    ('<tool_call>{"name": "look", "arguments": {"at": 1}</tool_call>x', "x", [WrittenCall("look", '{"at": 1}')]),
    ("so <tool_call>no json</tool_call> here", "so <tool_call>no json</tool_call> here", []),
    ('so <tool_call>{"nam', 'so <tool_call>{"nam', []),
]
LLAMA = [
    ("just text", "just text", []),
    (' {"answer": 42}', ' {"answer": 42}', []),
    ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    (f'{{"name": "look", "parameters": {PARIS.arguments}}}', "", [PARIS]),
    (
        (
            f'<|python_tag|>{{"type": "function", "name": "add", "parameters": {SUM.arguments}}}; '
            f'{{"name": "look", "parameters": {PARIS.arguments}}}'
        ),
        "",
        [SUM, PARIS],
    ),
    ('{"name": "look", "parameters": {"at": ', "", [WrittenCall("look", '{"at": ')]),
    ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("", "", []),
    ('{"na', '{"na', []),
]
MISTRAL = [
    ("just [text]", "just [text]", []),
    (f'Well [TOOL_CALLS] [{{"name": "look", "arguments": {PARIS.arguments}}}]', "Well", [PARIS]),
    (
        (
            f'[TOOL_CALLS][{{"name": "add", "arguments": {SUM.arguments}}}, '
            f'{{"arguments": {PARIS.arguments}, "name": "look"}}]'
        ),
        "",
        [SUM, PARIS],
    ),
    (f"[TOOL_CALLS]add{SUM.arguments}[TOOL_CALLS]look{PARIS.arguments}", "", [SUM, PARIS]),
    (f"[TOOL_CALLS]add[CALL_ID]a12345678[ARGS]{SUM.arguments}", "", [SUM]),
    ("[TOOL_CALLS]loo", "[TOOL_CALLS]loo", []),
    ("[TOOL_CAL", "[TOOL_CAL", []),
]
PARSERS: dict[str, Callable[[], ToolParser]] = {
    "hermes": HermesParser,
    "llama3": lambda: Llama3Parser(NAMES),
    "mistral": MistralParser,
}
CASES = [
    (name, *case) for name, cases in (("hermes", HERMES), ("llama3", LLAMA), ("mistral", MISTRAL)) for case in cases
]


def read(parser: ToolParser, pieces: Iterable[str]) -> tuple[str, list[WrittenCall]]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return collected(merged([*events, *parser.finish()]))


@pytest.mark.parametrize(("dialect", "text", "shown", "calls"), CASES)
def test_s24_every_cut_reads_the_same(dialect: str, text: str, shown: str, calls: list[WrittenCall]) -> None:
    make = PARSERS[dialect]
    assert read(make(), [text]) == (shown, calls)
    assert read(make(), text) == (shown, calls)
    for place in range(len(text)):
        assert read(make(), [text[:place], text[place:]]) == (shown, calls)
    for size in range(2, 17):
        assert read(make(), [text[n : n + size] for n in range(0, len(text), size)]) == (shown, calls)


_WORDS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '{"name": ', '"look"', ', "arguments": '),
    *('{"a": 1}', "}", '"', "\\", "[", "]", " ", "\n", "x", ";", '"parameters": ', "{"),
]


@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(_WORDS), max_size=12), st.data())
def test_s24_any_text_cut_anyhow(dialect: str, words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(PARSERS[dialect](), pieces) == read(PARSERS[dialect](), [text])


class _OneMove(HermesParser):
    """Makes one move per piece, as the reported fault did."""

    def feed(self, text: str) -> list[Any]:
        self._held += text
        return list(self._step() or [])


def test_s24_a_parser_of_one_move_per_piece_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARSERS, "hermes", _OneMove)
    with pytest.raises(AssertionError):
        _check_hermes()


def _check_hermes() -> None:
    for text, shown, calls in HERMES:
        test_s24_every_cut_reads_the_same("hermes", text, shown, calls)


# -- over HTTP -----------------------------------------------------------------------------------------------------

_TEMPLATES = {"llama3": LLAMA_TEMPLATE, "mistral": MISTRAL_TEMPLATE, "hermes": ""}
_SPECIAL = {"llama3": ("<|python_tag|>",), "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), "hermes": ()}
TOOLS = [{"type": "function", "function": {"name": name}} for name in NAMES]
ANSWERS = {
    "hermes": "<think>hm</think>Well" + HERMES[3][0],
    "llama3": LLAMA[4][0],
    "mistral": MISTRAL[3][0],
}


@pytest.mark.parametrize("dialect", sorted(ANSWERS))
def test_s24_bursts_of_every_size_give_the_calls_of_the_whole_answer(dialect: str) -> None:
    """Special tokens of the dialect are ids here, as in real vocabularies."""
    text, special = ANSWERS[dialect], _SPECIAL[dialect]
    for size in (1, 2, 3, 4, 5, 7, 8, 11, 16, 99):
        with in_process(Reciting(text, (size,) * 99, special=special, template=_TEMPLATES[dialect])) as client:
            body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS}
            (choice,) = answer(client, PATH, **body)["choices"]
            chunks = chunks_of(post(client, PATH, stream=True, **body).text)
        message = choice["message"]
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]]
        assert calls == [[SUM.name, SUM.arguments], [PARIS.name, PARIS.arguments]]
        whole = joined_chat(chunks)
        assert whole["calls"] == calls and whole["finish_reason"] == choice["finish_reason"] == "tool_calls"
        assert whole["content"] == (message["content"] or "") == ("Well" if dialect == "hermes" else "")
        assert whole["reasoning"] == message.get("reasoning_content", "")
        ids = [call["id"] for call in message["tool_calls"]]
        pattern = r"[A-Za-z0-9]{9}" if dialect == "mistral" else r"call_[A-Za-z0-9]{24}"
        assert len(set(ids)) == 2 and all(re.fullmatch(pattern, each) for each in ids)


def test_one_call_if_more_are_not_wanted() -> None:
    with in_process(Reciting(HERMES[3][0])) as client:
        body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "parallel_tool_calls": False}
        (choice,) = answer(client, PATH, **body)["choices"]
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
        assert len(joined_chat(chunks_of(post(client, PATH, stream=True, **body).text))["calls"]) == 1


def test_without_tools_calls_are_text() -> None:
    with in_process(Reciting(HERMES[3][0])) as client:
        for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            (choice,) = answer(client, PATH, messages=HELLO, **body)["choices"]
            assert choice["message"]["content"] == HERMES[3][0] and "tool_calls" not in choice["message"]


FORCED = [
    {
        "type": "function",
        "function": {
            "name": "set_light",
            "parameters": {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
                "required": ["on", "room"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "set_light"}}])
def test_forced_calls_follow_their_schema(served: Served, choice: Any, seed: int) -> None:
    body: dict[str, Any] = {"messages": HELLO, "tools": FORCED, "tool_choice": choice, "max_tokens": 150}
    body |= {"parallel_tool_calls": False, "seed": seed, "temperature": 1.5}
    document = answer(served.client, PATH, **body)
    (found,) = document["choices"]
    assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
    (call,) = found["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "stop":
        assert choice == "required" and arguments == {}
    else:
        assert arguments["on"] in (True, False) and arguments["room"] in ("kitchen", "hall")
    whole = joined_chat(chunks_of(post(served.client, PATH, stream=True, **body).text))
    assert whole["calls"] == [[call["function"]["name"], call["function"]["arguments"]]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": FORCED, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [FORCED[0], FORCED[0]]}, "tools"),
        ({"tools": FORCED, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": FORCED, "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "x", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_what_tools_cannot_do_is_refused_by_name(served: Served, body: dict[str, Any], param: str) -> None:
    assert error(served.client, PATH, 400, messages=HELLO, **body)["param"] == param


def test_a_template_that_shows_no_tools_is_no_silent_loss() -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with in_process(Reciting("x", template=plain)) as client:
        assert error(client, PATH, 400, messages=HELLO, tools=TOOLS)["param"] == "tools"
    unknown = plain + "{{ tools }}"
    with in_process(Reciting("x", template=unknown)) as client:
        assert "--tool-call-parser" in error(client, PATH, 400, messages=HELLO, tools=TOOLS)["message"]
    with in_process(Reciting(HERMES[3][0], template=unknown), tool_call_parser="hermes") as client:
        (choice,) = answer(client, PATH, messages=HELLO, tools=TOOLS)["choices"]
        assert len(choice["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
@pytest.mark.parametrize("several", [True, False])
def test_grammars_permit_what_their_parsers_read(dialect: Dialect, several: bool) -> None:
    words = tokenizer()
    backend = LlguidanceBackend(read_tokenizer(words, (2,)), 333, (2,))
    functions = [Function("look", {"type": "object", "properties": {"at": {"type": "string"}}}), Function('ad"d')]
    grammar = backend.compile(GrammarSpec("grammar", dialect.grammar(functions, several)))
    before, middle, behind = dialect.call
    calls = [f'{before}look{middle}{{"at": "x"}}{behind}', f'{before}ad\\"d{middle}{{}}{behind}']
    first, last = dialect.around
    for count in (1, 2):
        text = first + dialect.between.join(calls[:count]) + last
        matcher = grammar.open()
        permitted = all(matcher.accept(token) for token in words.encode(text, add_special_tokens=False))
        assert permitted is (several or count == 1)
        if permitted:
            shown, found = read(dialect.parser(["look", 'ad"d'], True), [text])
            assert shown == "" and [call.name for call in found] == ["look", 'ad"d'][:count]
        matcher.close()


def test_the_dialect_follows_from_the_template() -> None:
    texts = {
        "hermes": "{{ tools }} <tool_call>",
        "mistral": "[AVAILABLE_TOOLS] {{ tools }} [TOOL_CALLS]",
        "llama3": '<|start_header_id|> {{ tools }} {"name": x, "parameters": y}',
    }
    for name, text in texts.items():
        assert dialect_of(text) is DIALECTS[name]
    assert dialect_of("<tool_call>") is None
    assert dialect_of("{{ tools }}<tool_call><function=x>") is None
