"""The ways of writing tool calls: which one a model uses, how answers are read, and the grammar that forces calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .events import ToolParser
from .hermes import HermesParser
from .llama3 import Llama3Parser
from .mistral import MARKERS as MISTRAL_MARKERS
from .mistral import MistralParser

#: JSON in the usual spelling, one space behind colons and commas, so that no model can lose itself in white space.
_SPELLING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Function:
    """A tool as grammars need it. ``parameters``: the JSON schema of its arguments, ``None`` = it takes none."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Dialect:
    """One way of writing calls.

    ``parser(names, forced)``: reads one answer; ``forced``: it must be calls. ``call``: what stands before the name,
    between name and arguments, and behind them. ``around``: what stands before the first and behind the last call,
    ``between``: between two. ``markers``: special tokens that must show in the text.
    """

    name: str
    parser: Callable[[Sequence[str], bool], ToolParser]
    call: tuple[str, str, str]
    around: tuple[str, str] = ("", "")
    between: str = "\n"
    markers: tuple[str, ...] = ()
    id_length: int = 24

    def grammar(self, functions: Sequence[Function], several: bool) -> str:
        """Lark grammar of an answer that is one call of ``functions``, or one or more of them."""
        first, last = self.around
        more = f" ({_quoted(self.between)} call)*" if several else ""
        parts = [_quoted(first), f"call{more}", _quoted(last)]
        lines = ["start: " + " ".join(part for part in parts if part != '""')]
        lines.append("call: " + " | ".join(f"call_{place}" for place in range(len(functions))))
        before, middle, behind = self.call
        for place, function in enumerate(functions):
            head = _quoted(before + json.dumps(function.name)[1:-1] + middle)
            lines.append(f"call_{place}: {head} arguments_{place} {_quoted(behind)}")
            lines.append(f"arguments_{place}: %json {_schema(function)}")
        return "\n".join(lines) + "\n"


HERMES = Dialect(
    "hermes",
    lambda names, forced: HermesParser(),
    ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
)
LLAMA3 = Dialect(
    "llama3",
    lambda names, forced: Llama3Parser(names),
    ('{"name": "', '", "parameters": ', "}"),
    between="; ",
    markers=("<|python_tag|>",),
)
MISTRAL = Dialect(
    "mistral",
    lambda names, forced: MistralParser(listed=forced),
    ('{"name": "', '", "arguments": ', "}"),
    around=("[", "]"),
    between=", ",
    markers=MISTRAL_MARKERS,
    id_length=9,
)
DIALECTS = {dialect.name: dialect for dialect in (HERMES, LLAMA3, MISTRAL)}


def dialect_of(template: str) -> Dialect | None:
    """The dialect that a chat template teaches its model, as far as it can be told."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return None if "<function=" in template else HERMES
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return LLAMA3
    return None


def _schema(function: Function) -> str:
    schema = dict(_NOTHING if function.parameters is None else function.parameters)
    schema.setdefault("x-guidance", _SPELLING)
    return json.dumps(schema, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
