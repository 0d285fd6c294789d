"""What is wrong with a body, as one error that names the field: from pydantic's records of errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from .errors import ApiError
from .fields import REFUSED
from .schemas_chat import ChatRequest
from .schemas_text import CompletionRequest

Record = Mapping[str, Any]


def of_validation(errors: Sequence[Record]) -> ApiError:
    """400 for the first error of a body."""
    first = _telling(errors)
    kind = first["type"]
    if kind == "json_invalid":
        detail = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"The body is not JSON: {detail}", code="invalid_json")
    name = _path(first["loc"])
    if "field" in first.get("ctx", {}):  # told by the model as a whole
        name = ".".join(filter(None, (name, first["ctx"]["field"])))
    if kind == "unknown_field" or (kind == "none_required" and name in REFUSED):
        return ApiError(400, f"{name:.200}: {_unknown(name)}", param=name, code="unknown_parameter")
    if not name and kind != "value_error":
        return ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_json")
    text = f"{name:.200}: {_message(first)}" if name else _message(first)
    return ApiError(400, text, param=name or None, code="invalid_value")


def _telling(errors: Sequence[Record]) -> Record:
    """Of the errors about the first field at fault the one that lies deepest: of a union every alternative complains,
    and the one that fits best complains about a part."""
    field = _path(errors[0]["loc"][:2])
    same = [error for error in errors if _path(error["loc"][:2]) == field]
    return max(same, key=lambda error: (len(error["loc"]), [part for part in error["loc"] if isinstance(part, int)]))


def _unknown(name: str) -> str:
    if name in REFUSED:
        return REFUSED[name]
    close = difflib.get_close_matches(name, _known(), n=1)
    return f"unknown field{f'; did you mean {close[0]!r}?' if close else ''}"


@cache
def _known() -> tuple[str, ...]:
    return tuple({**ChatRequest.model_fields, **CompletionRequest.model_fields})


def _path(location: Sequence[Any]) -> str:
    """``("body", "messages", 0, "content")`` -> ``messages[0].content``; alternatives of a union are left out."""
    name = ""
    for place, part in enumerate(location[1:]):
        if isinstance(part, int):
            name += f"[{part}]"
        elif place == 0 or _is_field(str(part)):
            name += f".{part}" if name else str(part)
    return name


def _is_field(part: str) -> bool:
    """pydantic puts names of types (``list[str]``, ``TextPart``) between names of fields."""
    types = ("str", "int", "float", "bool", "[key]")
    return not (part[:1].isupper() or "[" in part or part.startswith("literal") or part in types)


def _message(error: Record) -> str:
    if error["type"] == "missing":
        return "is missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"must be {text.removeprefix('Input should be ')}" if text.startswith("Input should be ") else text
