"""Fifty JSON schemas of the kinds that programs ask for, and a check of documents against them. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

Schema = Mapping[str, Any]

_TEXT = {"type": "string", "maxLength": 24}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
_NUMBER = {"type": "number"}
_FLAG = {"type": "boolean"}
_COLOUR = {"enum": ["red", "green", "blue"]}
_LEAVES: tuple[Schema, ...] = (_TEXT, _COUNT, _NUMBER, _FLAG, _COLOUR)
_NAMES = ("name", "count", "price", "open", "colour")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def _object(properties: Mapping[str, Schema], required: Sequence[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _list(items: Schema, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def schemas() -> list[dict[str, Any]]:
    """Fifty different ones: flat, optional, nested, lists, unions, constants, long forced keys."""
    fields: dict[str, Schema] = dict(zip(_NAMES, _LEAVES, strict=True))
    found = [_object({name: fields[name]}) for name in _NAMES]
    found += [_object({a: fields[a], b: fields[b]}) for a, b in product(_NAMES[:3], _NAMES[1:]) if a != b]
    found += [_object({name: fields[name], "note": _TEXT}, [name]) for name in _NAMES]
    found += [_object({"items": _list(fields[name])}) for name in _NAMES]
    found += [_object({"item": _object({name: fields[name], "id": _COUNT})}) for name in _NAMES]
    found += [_list(_object({name: fields[name]}), 2) for name in _NAMES]
    found += [_object({"value": {"anyOf": [fields[name], {"type": "null"}]}}) for name in _NAMES]
    found += [_object({f"a_rather_long_key_that_is_forced_{name}": fields[name]}) for name in _NAMES]
    found += [_object({"kind": {"const": f"{name} record"}, name: fields[name]}) for name in _NAMES]
    return found[:50]


def violations(value: Any, schema: Schema, path: str = "$") -> Iterator[str]:
    """What of ``value`` does not fit, for the words of JSON schema that :func:`schemas` uses."""
    if "anyOf" in schema:
        if all(any(violations(value, part, path)) for part in schema["anyOf"]):
            yield f"{path} fits none of anyOf"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{path} is {value!r}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value!r}, not of {schema['enum']}"
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))):
        yield f"{path} is no {kind}: {value!r}"
        return
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"{path} is longer than {schema['maxLength']}"
    if kind in ("integer", "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path} is out of range: {value}"
    if isinstance(value, list):
        yield from _list_violations(value, schema, path)
    if isinstance(value, dict):
        yield from _object_violations(value, schema, path)


def _list_violations(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{path} has {len(value)} items"
    for place, item in enumerate(value):
        yield from violations(item, schema.get("items", {}), f"{path}[{place}]")


def _object_violations(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path} lacks {name!r}"
    for name, part in value.items():
        if name in properties:
            yield from violations(part, properties[name], f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{path} has an unknown {name!r}"
