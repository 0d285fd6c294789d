"""How one model's conversations are written and read: its chat template, its way of calling tools, its thinking blocks.
Found out once per server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from .errors import bad_field
from .reasoning import MARKERS, ThinkMarkers
from .settings import ServerSettings
from .tools.dialects import DIALECTS, Dialect, dialect_of


@dataclass(frozen=True)
class ChatProfile:
    """``template``: text of the template in use, empty if there is none; ``given``: the operator's own, ``None`` = the
    model's. ``think_end``: id of the token that ends a thinking block, if it is one token. ``marker_ids``: special
    tokens that must show in answers, and how."""

    template: str
    given: str | None
    dialect: Dialect | None
    thinking: ThinkMarkers | None
    think_end: int | None = None
    marker_ids: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any, given: str | None, settings: ServerSettings) -> ChatProfile:
        template = given or _template_text(tokenizer)
        chosen = settings.tool_call_parser
        dialect = dialect_of(template) if chosen == "auto" else DIALECTS.get(chosen)
        thinking = None if settings.reasoning_parser == "none" else _thinking(tokenizer, template)
        if thinking is None and settings.reasoning_parser == "think":
            thinking = MARKERS[0]
        end = None if thinking is None else _token(tokenizer, thinking.end)
        shown = [*(dialect.markers if dialect else ()), *((thinking.start, thinking.end) if thinking else ())]
        ids = {token: text for text in shown if (token := _special(tokenizer, text)) is not None}
        return cls(template, given, dialect, thinking, end, ids)

    def reads(self, variable: str) -> bool:
        """Whether the template uses a variable at all; what it does not use must not be dropped in silence."""
        return variable in self.template

    def dialect_for(self, name: str) -> Dialect:
        """The model's way of calling tools; 400 naming the field if it has none."""
        if not self.reads("tools"):
            raise bad_field(name, "the chat template of this model does not show tools to it")
        if self.dialect is None:
            raise bad_field(name, "how this model writes calls is not known; the operator can set --tool-call-parser")
        return self.dialect

    def reasoning_tokens(self, tokens: Sequence[int], opened: bool) -> int | None:
        """Tokens of an answer up to the end of its thinking block; ``None`` where that cannot be told."""
        if self.thinking is None or self.think_end is None:
            return None
        if self.think_end in tokens:
            return tokens.index(self.think_end) + 1
        return len(tokens) if opened else None


def read_template(path: str | None) -> str | None:
    """The operator's template; :class:`ConfigError` if it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("chat_template", f"{path} cannot be read: {error}") from error


def _template_text(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None) or ""
    return template if isinstance(template, str) else "\n".join(str(text) for text in template.values())


def _thinking(tokenizer: Any, template: str) -> ThinkMarkers | None:
    for markers in MARKERS:
        if markers.end in template or None not in (_token(tokenizer, markers.start), _token(tokenizer, markers.end)):
            return markers
    return None


def _token(tokenizer: Any, text: str) -> int | None:
    """The one id that stands for ``text``."""
    if tokenizer is None:
        return None
    ids = tokenizer.encode(text, add_special_tokens=False)
    return int(ids[0]) if len(ids) == 1 else None


def _special(tokenizer: Any, text: str) -> int | None:
    """The id of a special token, which answers do not show by themselves."""
    token = _token(tokenizer, text)
    known = None if token is None else tokenizer.added_tokens_decoder.get(token)
    return token if known is not None and known.special else None
