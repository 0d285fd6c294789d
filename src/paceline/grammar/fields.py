"""The request fields that ask for a grammar, read into a spec: ``response_format`` (OpenAI) and ``structured_outputs``
(vLLM). Knows neither HTTP nor backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ..core.errors import RequestError
from .spec import GrammarKind, GrammarSpec

#: Key of ``structured_outputs`` -> kind of grammar.
_STRUCTURED: dict[str, GrammarKind] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}


def request_grammar(response_format: object = None, structured_outputs: object = None) -> GrammarSpec | None:
    """The grammar that a request's two fields ask for, ``None`` if they ask for none; both at once are refused."""
    first = _of_response_format(response_format)
    second = _of_structured_outputs(structured_outputs)
    if first is not None and second is not None:
        raise RequestError("structured_outputs", "cannot be combined with response_format; give one of the two")
    return first or second


def _of_response_format(value: object) -> GrammarSpec | None:
    if value is None:
        return None
    given = _mapping("response_format", value)
    kind = given.get("type")
    if kind == "json_schema":
        _no_others("response_format", given, {"type", "json_schema"})
        return _of_json_schema(given.get("json_schema"))
    if kind not in ("text", "json_object"):
        raise RequestError("response_format.type", f'must be "text", "json_object" or "json_schema", not {kind!r}')
    _no_others("response_format", given, {"type"})
    return GrammarSpec("json_object", field="response_format") if kind == "json_object" else None


def _of_json_schema(value: object) -> GrammarSpec:
    """OpenAI's envelope; ``name``, ``description`` and ``strict`` change nothing, as every schema is enforced."""
    name = "response_format.json_schema"
    given = _mapping(name, value)
    _no_others(name, given, {"name", "description", "strict", "schema"})
    if given.get("schema") is None:
        raise RequestError(f"{name}.schema", "is missing; give the JSON schema here")
    return GrammarSpec("json_schema", given["schema"], field=f"{name}.schema")


def _of_structured_outputs(value: object) -> GrammarSpec | None:
    if value is None:
        return None
    given = {key: item for key, item in _mapping("structured_outputs", value).items() if item is not None}
    _no_others("structured_outputs", given, set(_STRUCTURED))
    if given.get("json_object") is False:
        del given["json_object"]
    if not given:
        return None
    if len(given) > 1:
        raise RequestError("structured_outputs", f"takes one constraint, not {len(given)} ({', '.join(sorted(given))})")
    [(key, item)] = given.items()
    return GrammarSpec(_STRUCTURED[key], item, field=f"structured_outputs.{key}")


def _mapping(field: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or any(not isinstance(key, str) for key in value):
        raise RequestError(field, f"must be an object, not {type(value).__name__}")
    return cast("Mapping[str, object]", value)


def _no_others(field: str, given: Mapping[str, object], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise RequestError(f"{field}.{key}", f"is not a known field; known are {', '.join(sorted(known))}")
