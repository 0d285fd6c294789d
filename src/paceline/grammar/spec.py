"""What a request asks of a grammar, as a frozen, hashable, picklable record. Knows neither tokens nor a backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..core.errors import RequestError

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]

#: Longest text of a schema, regular expression, grammar, or of all choices together, in characters.
MAX_GRAMMAR_CHARS = 262_144

#: Most alternatives of a ``choice``.
MAX_CHOICES = 8_192

_FIELDS: dict[str, str] = {
    "json_schema": "structured_outputs.json",
    "json_object": "structured_outputs.json_object",
    "regex": "structured_outputs.regex",
    "choice": "structured_outputs.choice",
    "grammar": "structured_outputs.grammar",
}


@dataclass(frozen=True)
class GrammarSpec:
    """One constraint on the text of a request.

    ``kind`` and the ``value`` it takes:

    - ``"json_schema"``: a JSON schema as a mapping, ``True`` or JSON text. Property order is meant.
    - ``"json_object"``: nothing (any JSON object).
    - ``"regex"``: a regular expression that the whole text must match; no look-around, no back-references.
    - ``"choice"``: a sequence of distinct non-empty strings, one of which is the whole text.
    - ``"grammar"``: a grammar in Lark syntax (rule ``start``) or GBNF/EBNF (``root ::= ...``).

    ``field`` is the request field that errors name; it does not take part in equality. After construction ``value`` is
    a string, or a tuple of strings for ``"choice"``. Raises :class:`RequestError` for anything else or too large.
    """

    kind: GrammarKind
    value: object = None
    field: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            known = ", ".join(get_args(GrammarKind))
            raise RequestError(self.field or "structured_outputs", f"unknown kind {self.kind!r}; known are {known}")
        if not self.field:
            object.__setattr__(self, "field", _FIELDS[self.kind])
        object.__setattr__(self, "value", self._normal())
        if self.size > MAX_GRAMMAR_CHARS:
            raise self._error(f"has {self.size} characters, at most {MAX_GRAMMAR_CHARS} are allowed")
        try:
            "".join(self.choices or (self.text,)).encode()
        except UnicodeEncodeError:
            raise self._error("holds a lone surrogate, which no text can contain") from None

    @property
    def text(self) -> str:
        """The value as one string; empty for ``"choice"``."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The alternatives of a ``"choice"``, else none."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def size(self) -> int:
        """Characters of the value, the measure of all bounds."""
        return len(self.text) + sum(len(choice) for choice in self.choices)

    def _error(self, message: str) -> RequestError:
        return RequestError(self.field, message)

    def _normal(self) -> str | tuple[str, ...]:
        if self.kind == "json_schema":
            return self._schema_text(self.value)
        if self.kind == "json_object":
            if self.value is not None and self.value is not True and self.value != "":
                raise self._error(f"takes no value (or true), not {self.value!r}")
            return ""
        if self.kind == "choice":
            return self._choice_tuple(self.value)
        if not isinstance(self.value, str) or not self.value.strip():
            raise self._error(f"must be a non-empty string, not {_shown(self.value)}")
        return self.value

    def _schema_text(self, value: object) -> str:
        try:
            schema = json.loads(value) if isinstance(value, str) else value
            if not isinstance(schema, dict | bool):
                raise self._error(f"must be a JSON schema (an object or true), not {_shown(schema)}")
            if schema is False:
                raise self._error("permits no value")
            schema = {} if schema is True else schema
            return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._error(f"is not JSON: {error}") from None
        except RecursionError:
            raise self._error("is nested too deeply") from None

    def _choice_tuple(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise self._error(f"must be a non-empty list of strings, not {_shown(value)}")
        if len(value) > MAX_CHOICES:
            raise self._error(f"holds {len(value)} choices, at most {MAX_CHOICES} are allowed")
        for choice in value:
            if not isinstance(choice, str) or not choice:
                raise self._error(f"must hold non-empty strings only, not {_shown(choice)}")
        return tuple(dict.fromkeys(value))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
