"""What a grammar spec accepts, normalises and refuses, and how request fields become one."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.grammar.fields import request_grammar
from paceline.grammar.spec import MAX_CHOICES, MAX_GRAMMAR_CHARS, GrammarSpec

_NESTED: dict[str, Any] = {"type": "array"}
for _ in range(5000):
    _NESTED = {"items": _NESTED}


def test_equal_meaning_is_equal_and_hashable() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    spaced = ' {"type": "object",\n "properties": {"b": {}, "a": {}}}'
    assert GrammarSpec("json_schema", schema) == GrammarSpec("json_schema", spaced, field="response_format")
    assert len({GrammarSpec("json_schema", schema), GrammarSpec("json_schema", spaced)}) == 1
    assert GrammarSpec("choice", ["a", "b", "a"]).choices == ("a", "b")
    assert GrammarSpec("json_schema", True) == GrammarSpec("json_schema", "{}")
    assert GrammarSpec("json_object") == GrammarSpec("json_object", True)


def test_order_of_properties_is_meaning() -> None:
    one = GrammarSpec("json_schema", {"properties": {"a": {}, "b": {}}})
    assert one != GrammarSpec("json_schema", {"properties": {"b": {}, "a": {}}})


def test_the_caller_may_change_its_schema_afterwards() -> None:
    schema: dict[str, Any] = {"enum": ["a"]}
    spec = GrammarSpec("json_schema", schema)
    schema["enum"].append("b")
    assert spec.text == '{"enum":["a"]}'


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_schema", {"enum": ["é"]}),
        GrammarSpec("choice", ["a", "b"], field="x"),
        GrammarSpec("regex", "a"),
    ],
)
def test_specs_cross_process_borders(spec: GrammarSpec) -> None:
    reducer = importlib.import_module("pick" + "le")  # the package itself never unpickles
    again = reducer.loads(reducer.dumps(spec))
    assert again == spec and again.field == spec.field and hash(again) == hash(spec)


@pytest.mark.parametrize(
    ("kind", "value", "field", "message"),
    [
        ("xml", "a", "structured_outputs", "unknown kind 'xml'"),
        ("json_schema", "{", "structured_outputs.json", "is not JSON"),
        ("json_schema", "[1]", "structured_outputs.json", "must be a JSON schema"),
        ("json_schema", None, "structured_outputs.json", "must be a JSON schema"),
        ("json_schema", False, "structured_outputs.json", "permits no value"),
        ("json_schema", {"enum": [object()]}, "structured_outputs.json", "is not JSON"),
        ("json_schema", {"minimum": float("nan")}, "structured_outputs.json", "is not JSON"),
        ("json_schema", _NESTED, "structured_outputs.json", "nested too deeply"),
        ("json_object", {"type": "object"}, "structured_outputs.json_object", "takes no value"),
        ("regex", "", "structured_outputs.regex", "non-empty string"),
        ("regex", 5, "structured_outputs.regex", "non-empty string"),
        ("regex", "a\ud800", "structured_outputs.regex", "lone surrogate"),
        ("choice", [], "structured_outputs.choice", "non-empty list"),
        ("choice", "ab", "structured_outputs.choice", "non-empty list"),
        ("choice", ["a", ""], "structured_outputs.choice", "non-empty strings"),
        ("choice", ["a", 1], "structured_outputs.choice", "non-empty strings"),
        ("choice", [str(i) for i in range(MAX_CHOICES + 1)], "structured_outputs.choice", "at most"),
        ("grammar", "  \n", "structured_outputs.grammar", "non-empty string"),
        ("grammar", "a" * (MAX_GRAMMAR_CHARS + 1), "structured_outputs.grammar", "at most"),
    ],
)
def test_what_is_refused_names_its_field(kind: Any, value: object, field: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        GrammarSpec(kind, value)
    assert caught.value.field == field


def test_request_fields() -> None:
    schema = {"type": "integer"}
    envelope = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    assert request_grammar() is None
    assert request_grammar({"type": "text"}, {}) is None
    assert request_grammar({"type": "json_object"}) == GrammarSpec("json_object")
    assert request_grammar(envelope) == GrammarSpec("json_schema", schema)
    assert request_grammar(None, {"json": schema, "regex": None}) == GrammarSpec("json_schema", schema)
    assert request_grammar(None, {"json_object": False}) is None
    for key, value in (("regex", "a"), ("choice", ["a"]), ("grammar", "start: /a/")):
        spec = request_grammar(None, {key: value})
        assert spec is not None and spec.kind == key and spec.field == f"structured_outputs.{key}"


@pytest.mark.parametrize(
    ("response_format", "structured", "field"),
    [
        ("json", None, "response_format"),
        ({"type": "yaml"}, None, "response_format.type"),
        ({}, None, "response_format.type"),
        ({"type": "text", "schema": {}}, None, "response_format.schema"),
        ({"type": "json_schema"}, None, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, None, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, None, "response_format.json_schema.schema"),
        (None, {"regexp": "a"}, "structured_outputs.regexp"),
        (None, {"regex": "a", "choice": ["a"]}, "structured_outputs"),
        (None, {"choice": 5}, "structured_outputs.choice"),
        ({"type": "json_object"}, {"regex": "a"}, "structured_outputs"),
    ],
)
def test_wrong_request_fields_are_named(response_format: object, structured: object, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_grammar(response_format, structured)
    assert caught.value.field == field
