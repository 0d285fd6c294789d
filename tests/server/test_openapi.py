"""The published description: generated calls, right and wrong ones, find no failure and no answer outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from tests.server.kit import VOCAB, app_over, listening, toy_engine

from paceline.testing.toy import ToySpec, ToyTarget

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/version"),
]


@pytest.fixture(scope="module")
def described() -> Iterator[Any]:
    """The description of a server whose context is short, so that answers are."""
    target = ToyTarget(ToySpec(vocab_size=VOCAB, max_model_len=48))
    with toy_engine(target=target) as engine, listening(app_over(engine)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_operation_is_among_those_called(described: Any) -> None:
    found = [result.ok() for result in described.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in found} == set(OPERATIONS)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_generated_calls(described: Any, method: str, path: str, mode: GenerationMode) -> None:
    operation = described[path][method]
    if method == "GET" and mode is GenerationMode.NEGATIVE:
        mode = GenerationMode.POSITIVE  # a path can hold nothing wrong
    if method == "GET" and "{" not in path:
        operation.Case().call_and_validate(checks=CHECKS)
        return

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    def call(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    call()
