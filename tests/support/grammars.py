"""Small grammars of every kind, for requests over the byte-level test tokenizer."""

from __future__ import annotations

from typing import Any

GRAMMARS: dict[str, Any] = {
    "json": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["the", "other"]},
            "list": {"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 2},
        },
        "required": ["kind", "list"],
        "additionalProperties": False,
    },
    "regex": r"[A-Z]{2}-[0-9]{1,3}( of the people)?",
    "choice": ["a", "the", "there", "their people", 'é"\\'],
    "lark": 'start: "(" start ")" | /[a-z]{1,3}/\n',
    "gbnf": 'root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"\n',
}
