"""The schema run: fifty different schemas, a check that notices what does not fit, figures of a small run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.bench.chain_cost import measure
from paceline.bench.schema_set import schemas, violations
from paceline.bench.schemas import main
from paceline.testing.models import tiny_model

_OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_fifty_different_schemas() -> None:
    assert len({json.dumps(schema) for schema in schemas()}) == len(schemas()) == 50


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        ({"a": 3}, _OBJECT, True),
        ({"a": 3, "b": "x"}, _OBJECT, True),
        ({"b": "x"}, _OBJECT, False),
        ({"a": 10}, _OBJECT, False),
        ({"a": True}, _OBJECT, False),
        ({"a": 1.5}, _OBJECT, False),
        ({"a": 1, "b": "y"}, _OBJECT, False),
        ({"a": 1, "c": 1}, _OBJECT, False),
        ([], {"type": "array", "minItems": 1}, False),
        ([1, "x"], {"type": "array", "items": {"type": "number"}}, False),
        ("long", {"type": "string", "maxLength": 3}, False),
        (None, {"anyOf": [{"type": "null"}, {"type": "string"}]}, True),
        (1, {"anyOf": [{"type": "null"}, {"type": "string"}]}, False),
        ("a", {"const": "b"}, False),
    ],
)
def test_the_check_notices_what_does_not_fit(value: Any, schema: dict[str, Any], fits: bool) -> None:
    assert (list(violations(value, schema)) == []) is fits


def test_a_small_run_on_a_random_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_model("llama"))
    options = ["--model", model, "--dtype", "float64", "--schemas", "2", "--seeds", "2", "--max-tokens", "30"]
    assert main([*options, "--device", "cpu", "--batch", "2"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["faults"] == figures["unequal"] == 0
    plain, drafted = figures["runs"]
    assert plain["drafter"] == "none" != drafted["drafter"] and plain["drafted"] == 0
    assert all(run["requests"] == 4 and run["tokens_per_forward"] >= 1 for run in (plain, drafted))


def test_the_cost_of_the_chain_is_measured_for_rows_and_vocabulary() -> None:
    figures = measure(2, 512, repeats=1)
    assert (figures["rows"], figures["vocabulary"]) == (2, 512)
    assert all(value > 0 for value in figures.values())
