"""The base of what callers send: unknown fields, values of another type, halves of characters and absurd nesting are
refused, and a body with a million faults costs no more than one with the first of them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, model_validator
from pydantic_core import PydanticCustomError

_T = TypeVar("_T")


class _FirstFault(FailFast):
    """Hashable, as parts of a union must be."""

    def __hash__(self) -> int:
        return hash(type(self))


#: A list that is refused at its first wrong item.
Many = Annotated[list[_T], _FirstFault()]

MAX_DEPTH, MAX_KEYS = 64, 4096


class Strict(BaseModel):
    """See the module."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_shape(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for name, value in data.items():
                if name not in known:
                    raise _refusal("unknown_field", "unknown field", name)
                _check_value(name, value)
        return data


def _check_value(name: str, value: Any) -> None:
    texts = value if isinstance(value, list) else (value,)
    if not all(_encodable(text) for text in texts):
        raise _refusal("lone_surrogate", "holds a lone surrogate", name)
    if isinstance(value, dict):
        if len(value) > MAX_KEYS:
            raise _refusal("too_many_keys", f"has more than {MAX_KEYS} keys", name)
        if not _shallow(value):
            raise _refusal("too_deep", f"is nested more than {MAX_DEPTH} deep", name)


def _refusal(kind: str, message: str, field: str) -> PydanticCustomError:
    return PydanticCustomError(kind, message, {"field": str(field)})


def _encodable(value: object) -> bool:
    """JSON can spell half of a character, which no text may hold."""
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shallow(value: Any) -> bool:
    """Whether nothing lies deeper than what writing it out again can follow."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return True
    return False
